//! Chat templates: Jinja, with what transformers adds to it. A template comes from strangers, so its size, stack and steps are
//! bounded.

use std::thread;

use minijinja::value::{Kwargs, Value};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::guard::Fault;

/// The templates in use have up to about 20 KB.
const MAX_TEMPLATE_BYTES: usize = 256 << 10;
const STACK_BYTES: usize = 256 << 20;
/// Instructions of a template: far above what a long conversation needs.
const FUEL: u64 = 10_000_000;

/// Renders `template` with `variables`, a JSON object, as transformers does.
pub fn render(template: &str, variables: &str) -> Result<String, Fault> {
    if template.len() > MAX_TEMPLATE_BYTES {
        return Err(Fault(format!("it has {} bytes, more than {MAX_TEMPLATE_BYTES}", template.len())));
    }
    let variables: Value = serde_json::from_str(variables).map_err(|error| Fault(error.to_string()))?;
    // Parsing and rendering recurse with what is nested in the template.
    thread::scope(|scope| {
        let work = || rendered(template, &variables).map_err(|error| Fault(text_of(&error)));
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| Fault(format!("no thread can be started: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(Fault("it makes the minijinja crate panic".to_string())))
    })
}

fn rendered(template: &str, variables: &Value) -> Result<String, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| chrono::Local::now().format(&format).to_string());
    environment.template_from_str(template)?.render(variables)
}

fn text_of(error: &Error) -> String {
    let line = error.line().map_or(String::new(), |line| format!("line {line}: "));
    format!("{line}{}", error.detail().map_or_else(|| error.to_string(), str::to_string))
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False, indent=…)` writes it.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let mut bytes = Vec::new();
    let written = match indent {
        Some(width) => {
            let spaces = vec![b' '; width.min(16)];
            value.serialize(&mut Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(&spaces)))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)),
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(text))
}

/// `{"a": 1, "b": 2}`: a space after each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
