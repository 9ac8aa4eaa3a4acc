//! The environment of transformers' templates: its functions, filters and tests.

use std::fmt::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::output::Progress;
use super::{filters, json, methods, numbers};

/// What `raise_exception` was called with.
#[derive(Debug)]
pub struct Raised(pub String);

impl fmt::Display for Raised {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// A date takes some 30 characters.
const MAX_DATE_BYTES: usize = 4096;

/// What minijinja has and Jinja does not.
const UNKNOWN_FILTERS: [&str; 5] = ["bool", "chain", "lines", "split", "zip"];

pub fn new() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(numbers::write);
    UNKNOWN_FILTERS.iter().for_each(|name| environment.remove_filter(name));
    environment.remove_global("debug");
    environment.add_filter("tojson", json::to_json);
    environment.add_filter("trim", filters::trim);
    environment.add_filter("string", filters::string);
    environment.add_filter("int", filters::int);
    environment.add_filter("float", filters::float);
    environment.add_filter("indent", filters::indent);
    environment.add_filter("center", filters::center);
    environment.add_filter("format", filters::format);
    environment.add_filter("sum", filters::sum);
    environment.add_filter("iterated", filters::iterated);
    environment.add_filter("operand", filters::operand);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_function("generated", generated);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
            || (value.kind() == ValueKind::Iterable && value.len().is_some())
    });
    Ok(environment)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let text = numbers::text(message);
    Err(Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
}

/// A clock without a time zone, as Python's: %Z and %z are empty. Python counts microseconds.
fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    let bad = || Error::new(ErrorKind::InvalidOperation, "strftime_now: not a format of dates");
    if format.len() > MAX_DATE_BYTES {
        return Err(bad());
    }
    let format = format.replace("%f", "%6f").replace("%Z", "").replace("%z", "");
    let mut text = String::new();
    write!(text, "{}", Progress::of(state)?.now.format(&format)).map_err(|_| bad())?;
    Ok(text)
}

/// A generation block: its captured text, which is written here.
fn generated(state: &State, text: &Value) -> Result<Value, Error> {
    Progress::of(state)?.add_span(text.as_str().map_or(0, str::len));
    Ok(text.clone())
}
