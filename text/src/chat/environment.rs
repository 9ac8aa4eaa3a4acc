//! The environment of transformers' templates: its functions, filters and tests.

use std::fmt;

use chrono::format::{Item, StrftimeItems};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, State};

use super::output::Progress;
use super::{json, methods, numbers};

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

pub fn new() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(numbers::write);
    environment.add_filter("tojson", json::to_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_function("generated", generated);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    Ok(environment)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    if message.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    Err(Error::new(ErrorKind::InvalidOperation, message.to_string()).with_source(Raised(message.to_string())))
}

fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    let items: Vec<Item> = StrftimeItems::new(format).collect();
    if items.len() > MAX_DATE_BYTES || items.contains(&Item::Error) {
        return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: not a format of dates"));
    }
    Ok(Progress::of(state)?.now.format_with_items(items.iter()).to_string())
}

/// A generation block: its captured text, which is written here.
fn generated(state: &State, text: &Value) -> Result<Value, Error> {
    Progress::of(state)?.add_span(text.as_str().map_or(0, str::len));
    Ok(text.clone())
}
