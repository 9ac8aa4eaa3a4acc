//! `tojson` as transformers has it: Python's `json.dumps` with its options.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, State};

use super::filters::{pay_for_work, refused};
use super::numbers;
use super::output::MAX_OUTPUT_BYTES;

/// Python gives up a little deeper.
const MAX_DEPTH: usize = 900;
/// Blanks, or bytes of a text that stands for them.
const MAX_INDENT: usize = 64;

pub fn to_json(
    state: &State,
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let indent = indent_of(indent.or(kwargs.get::<Option<Value>>("indent")?))?;
    let separators = separators_of(kwargs.get::<Option<Value>>("separators")?, indent.is_some())?;
    let mut writer = Writer {
        text: String::new(),
        ensure_ascii: ensure_ascii.or(kwargs.get::<Option<bool>>("ensure_ascii")?).unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        separators,
    };
    kwargs.assert_all_used()?;
    writer.value(value, 0)?;
    pay_for_work(state, writer.text.len())?;
    Ok(Value::from(writer.text))
}

fn indent_of(indent: Option<Value>) -> Result<Option<String>, Error> {
    let Some(indent) = indent.filter(|indent| !indent.is_none()) else { return Ok(None) };
    let width = match indent.as_str() {
        Some(text) => text.len(),
        None => usize::try_from(i64::try_from(indent.clone())?.max(0)).unwrap_or(usize::MAX),
    };
    if width > MAX_INDENT {
        return Err(refused(format!("tojson: an indent of more than {MAX_INDENT}")));
    }
    Ok(Some(indent.as_str().map_or_else(|| " ".repeat(width), str::to_string)))
}

/// Between items, and between a name and its value.
fn separators_of(given: Option<Value>, indented: bool) -> Result<[String; 2], Error> {
    let Some(given) = given.filter(|given| !given.is_none()) else {
        return Ok([if indented { "," } else { ", " }.to_string(), ": ".to_string()]);
    };
    let texts: Vec<String> = given.try_iter()?.filter_map(|text| text.as_str().map(str::to_string)).collect();
    if texts.iter().any(|text| text.len() > MAX_INDENT) {
        return Err(refused(format!("tojson: a separator of more than {MAX_INDENT} bytes")));
    }
    texts.try_into().map_err(|_| refused("tojson: separators should be two texts"))
}

struct Writer {
    text: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    separators: [String; 2],
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let bytes = self.text.len() + value.as_str().map_or(0, str::len);
        if depth > MAX_DEPTH || bytes > MAX_OUTPUT_BYTES {
            return Err(refused("tojson: a value that is too deep or too long"));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq => self.list(value, depth)?,
            ValueKind::Iterable if value.len().is_some() => self.list(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            kind => return Err(refused(format!("tojson: a value of type {kind} is no JSON"))),
        }
        Ok(())
    }

    fn list(&mut self, list: &Value, depth: usize) -> Result<(), Error> {
        self.text.push('[');
        let mut any = false;
        for item in list.try_iter()? {
            self.next(any, depth + 1);
            self.value(&item, depth + 1)?;
            any = true;
        }
        self.close(']', any, depth);
        Ok(())
    }

    fn object(&mut self, object: &Value, depth: usize) -> Result<(), Error> {
        self.text.push('{');
        let mut pairs = numbers::pairs(object);
        if self.sort_keys {
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
        }
        let any = !pairs.is_empty();
        for (i, (key, value)) in pairs.iter().enumerate() {
            self.next(i > 0, depth + 1);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None => self.string("null"),
                ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
                ValueKind::Number => self.string(&number(key)),
                kind => return Err(refused(format!("tojson: a key of type {kind}"))),
            }
            self.text.push_str(&self.separators[1]);
            self.value(value, depth + 1)?;
        }
        self.close('}', any, depth);
        Ok(())
    }

    /// Goes to the place of the next item.
    fn next(&mut self, any: bool, depth: usize) {
        if any {
            self.text.push_str(&self.separators[0]);
        }
        self.line(depth);
    }

    fn close(&mut self, bracket: char, any: bool, depth: usize) {
        if any {
            self.line(depth);
        }
        self.text.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            self.text.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for c in text.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ensure_ascii && c as u32 > 0x7e) => self.escape(c),
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            self.text.push_str(&format!("\\u{unit:04x}"));
        }
    }
}

fn number(value: &Value) -> String {
    match numbers::as_float(value) {
        None => value.to_string(),
        Some(float) if float.is_nan() => "NaN".to_string(),
        Some(float) if float.is_infinite() => if float > 0.0 { "Infinity" } else { "-Infinity" }.to_string(),
        Some(float) => numbers::float(float),
    }
}
