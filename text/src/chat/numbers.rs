//! Values as Python prints them, bounded.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Error, Output, State};

use super::filters::{pay_for_work, refused};
use super::output::MAX_OUTPUT_BYTES;

/// Python gives up a little deeper.
const MAX_DEPTH: usize = 900;

/// Writes a value into a template's output.
pub fn write(output: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let is_plain = matches!(state.auto_escape(), AutoEscape::None);
    match value.as_str() {
        Some(text) if is_plain => output.write_str(text).map_err(Error::from),
        None if value.as_object().is_some() || as_float(value).is_some() => {
            let text = Value::from(text(state, value)?);
            minijinja::escape_formatter(output, state, &text)
        }
        _ => minijinja::escape_formatter(output, state, value),
    }
}

/// `str(value)`.
pub fn text(state: &State, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_string());
    }
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut printer = Printer { text: String::new() };
    printer.value(value, 0)?;
    if value.as_object().is_some() {
        pay_for_work(state, printer.text.len())?;
    }
    Ok(printer.text)
}

/// Writes what Python's `repr` gives.
struct Printer {
    text: String,
}

impl Printer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let bytes = self.text.len() + value.as_str().map_or(0, str::len);
        if depth > MAX_DEPTH || bytes > MAX_OUTPUT_BYTES {
            return Err(refused("a value is too deep or too long to be printed"));
        }
        match value.kind() {
            ValueKind::Undefined => self.text.push_str("Undefined"),
            ValueKind::Number => match as_float(value) {
                Some(number) => self.text.push_str(&float(number)),
                None => self.other(value),
            },
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            _ => self.other(value),
        }
        Ok(())
    }

    fn other(&mut self, value: &Value) {
        let _ = write!(self.text, "{value:?}");
    }

    fn list(&mut self, list: &Value, depth: usize) -> Result<(), Error> {
        let is_tuple = list.is_tuple();
        self.text.push(if is_tuple { '(' } else { '[' });
        let mut count = 0;
        for item in list.try_iter()? {
            self.next(count > 0);
            self.value(&item, depth + 1)?;
            count += 1;
        }
        if is_tuple && count == 1 {
            self.text.push(',');
        }
        self.text.push(if is_tuple { ')' } else { ']' });
        Ok(())
    }

    fn object(&mut self, object: &Value, depth: usize) -> Result<(), Error> {
        self.text.push('{');
        for (i, (key, item)) in pairs(object).iter().enumerate() {
            self.next(i > 0);
            self.value(key, depth + 1)?;
            self.text.push_str(": ");
            self.value(item, depth + 1)?;
        }
        self.text.push('}');
        Ok(())
    }

    fn next(&mut self, any: bool) {
        if any {
            self.text.push_str(", ");
        }
    }
}

/// A float as Python's `repr` writes it.
pub fn float(value: f64) -> String {
    if !value.is_finite() {
        return format!("{value}").to_lowercase();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// The float, if the value is one.
pub fn as_float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

pub fn pairs(value: &Value) -> Vec<(Value, Value)> {
    value.as_object().and_then(|object| object.try_iter_pairs().map(|pairs| pairs.collect())).unwrap_or_default()
}
