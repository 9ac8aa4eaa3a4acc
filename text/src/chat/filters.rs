//! Filters that minijinja lacks, or has in another way than Jinja.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{filters, Error, ErrorKind, State};

use super::output::MAX_OUTPUT_BYTES;
use super::{methods, numbers, operators};

pub fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Pays for a text before it is made, and refuses one that is longer than an output may be.
pub fn pay_for(state: &State, bytes: usize) -> Result<(), Error> {
    if bytes > MAX_OUTPUT_BYTES {
        return Err(refused(format!("it makes a text of more than {MAX_OUTPUT_BYTES} bytes")));
    }
    state.consume_fuel((bytes / 64) as u64)
}

/// Pays for a text that took more work than copying it.
pub fn pay_for_work(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / 8) as u64)
}

pub fn trim(state: &State, value: &Value, chars: Option<Value>) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => methods::strip(state, text, chars.as_ref(), true, true),
        None => methods::strip(state, &numbers::text(state, value)?, chars.as_ref(), true, true),
    }
}

pub fn string(state: &State, value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => Ok(Value::from(numbers::text(state, value)?)),
    }
}

/// A text that `+` does not escape.
pub fn safe(state: &State, value: &Value) -> Result<Value, Error> {
    match value.is_safe() {
        true => Ok(value.clone()),
        false => Ok(Value::from_safe_string(numbers::text(state, value)?)),
    }
}

/// Jinja's `int` gives the default for whatever is no number.
pub fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let otherwise = default.clone().or(kwargs.get::<Option<Value>>("default")?).unwrap_or_else(|| Value::from(0));
    Ok(filters::int(state, value, default, base, kwargs).unwrap_or(otherwise))
}

pub fn float(state: &State, value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let otherwise = default.clone().or(kwargs.get::<Option<Value>>("default")?).unwrap_or_else(|| Value::from(0.0));
    Ok(filters::float(state, value, default, kwargs).unwrap_or(otherwise))
}

/// Jinja's: lines after the first are indented by a number of blanks or by a text.
pub fn indent(
    state: &State,
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let width = width.or(kwargs.get::<Option<Value>>("width")?).unwrap_or_else(|| Value::from(4));
    let first = first.or(kwargs.get::<Option<bool>>("first")?).unwrap_or(false);
    let blank = kwargs.get::<Option<bool>>("blank")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let before = match width.as_str() {
        Some(text) => text.to_string(),
        None => {
            let width = usize::try_from(i64::try_from(width)?.max(0)).unwrap_or(usize::MAX);
            pay_for(state, width)?;
            " ".repeat(width)
        }
    };
    let mut text = numbers::text(state, value)?;
    pay_for(state, text.len())?;
    text.push('\n');
    let lines = methods::split_lines(&text, false);
    pay_for(state, text.len().saturating_add(lines.len().saturating_mul(before.len())))?;
    let indented = |(i, line): (usize, &&str)| {
        let skipped = if i == 0 { !first } else { line.is_empty() && !blank };
        if skipped {
            (*line).to_string()
        } else {
            format!("{before}{line}")
        }
    };
    Ok(Value::from(lines.iter().enumerate().map(indented).collect::<Vec<_>>().join("\n")))
}

pub fn center(state: &State, value: &Value, width: Option<i64>) -> Result<Value, Error> {
    methods::padded(state, &numbers::text(state, value)?, width.unwrap_or(80), ' ', methods::Side::Both)
}

/// printf's formats.
pub fn format(state: &State, format: &str, values: Rest<Value>) -> Result<Value, Error> {
    operators::formatted(state, FormatStyle::Printf, format, &values)
}

/// Jinja's `sum`; lists are joined at once.
pub fn sum(
    state: &State,
    values: Value,
    attribute: Option<&str>,
    start: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    let begin = start.clone().or(kwargs.get::<Option<Value>>("start")?);
    if begin.as_ref().is_some_and(is_list) && attribute.is_none() {
        let lists: Vec<Value> = begin.into_iter().chain(values.try_iter()?).collect();
        return operators::listed(&lists);
    }
    if values.try_iter()?.any(|value| is_list(&value)) || begin.as_ref().is_some_and(is_list) {
        return Err(refused("a sum of lists needs start=[]"));
    }
    filters::sum(state, values, attribute, start, kwargs)
}
