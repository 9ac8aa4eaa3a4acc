//! The environment of transformers' templates: its functions, filters and tests.

use std::fmt::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::output::Progress;
use super::{filters, json, methods, numbers, operators};

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
const UNKNOWN_TESTS: [&str; 2] = ["endingwith", "startingwith"];

pub fn new() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(numbers::write);
    UNKNOWN_FILTERS.iter().for_each(|name| environment.remove_filter(name));
    UNKNOWN_TESTS.iter().for_each(|name| environment.remove_test(name));
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
    environment.add_filter("safe", filters::safe);
    environment.add_filter("generator", operators::generator);
    environment.add_filter("indexed", operators::indexed);
    environment.add_filter("iterated", operators::iterated);
    environment.add_filter("measured", operators::measured);
    environment.add_filter("plus", operators::plus);
    environment.add_filter("remainder", operators::remainder);
    environment.add_filter("text", operators::text);
    environment.add_filter("times", operators::times);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_function("generated", generated);
    add_tests(&mut environment);
    Ok(environment)
}

fn add_tests(environment: &mut Environment) {
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
            || (value.kind() == ValueKind::Iterable && value.len().is_some())
    });
    let cases: [(&'static str, fn(char) -> bool, fn(char) -> bool); 2] =
        [("lower", char::is_lowercase, char::is_uppercase), ("upper", char::is_uppercase, char::is_lowercase)];
    for (name, wanted, other) in cases {
        environment.add_test(name, move |state: &State, value: &Value| {
            operators::measured(state, value)?;
            let text = numbers::text(state, value)?;
            Ok::<_, Error>(text.chars().any(wanted) && !text.chars().any(other))
        });
    }
    let comparisons: [(&[&'static str], fn(&Value, &Value) -> bool); 6] = [
        (&["eq", "equalto", "=="], |a, b| a == b),
        (&["ne", "!="], |a, b| a != b),
        (&["lt", "lessthan", "<"], |a, b| a < b),
        (&["le", "<="], |a, b| a <= b),
        (&["gt", "greaterthan", ">"], |a, b| a > b),
        (&["ge", ">="], |a, b| a >= b),
    ];
    for (names, holds) in comparisons {
        for name in names {
            environment.add_test(*name, move |state: &State, left: &Value, right: &Value| {
                operators::measured(state, left)?;
                operators::measured(state, right)?;
                Ok::<_, Error>(holds(left, right))
            });
        }
    }
    environment.add_test("in", |state: &State, value: &Value, container: &Value| {
        operators::measured(state, value)?;
        operators::measured(state, container)?;
        minijinja::tests::is_in(state, value, container)
    });
}

fn raise_exception(state: &State, message: &Value) -> Result<Value, Error> {
    let text = numbers::text(state, message)?;
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
