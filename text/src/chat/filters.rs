//! Filters that minijinja lacks, or has in another way than Jinja, and those of the rewritten tags.

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{filters, Error, ErrorKind, State};

use super::output::MAX_OUTPUT_BYTES;
use super::{methods, numbers};

/// Lists in templates have some hundred items; minijinja has the same bound on range().
const MAX_ITEMS: usize = 100_000;

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

/// The list of a loop: Python does not iterate None.
pub fn iterated(value: &Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(refused("None is not iterable"));
    }
    Ok(value.clone())
}

/// The left side of a sum. Lists are added lazily, so their length is bounded here.
pub fn operand(value: &Value) -> Result<Value, Error> {
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        match value.len() {
            None => return Err(refused("an iterator cannot be added to a list: use the filter list")),
            Some(length) if length > MAX_ITEMS => {
                return Err(refused(format!("a list of more than {MAX_ITEMS} items is added to another")));
            }
            Some(_) => {}
        }
    }
    Ok(value.clone())
}

pub fn trim(value: &Value, chars: Option<Value>) -> Result<Value, Error> {
    let text = numbers::text(value);
    methods::strip(&text, chars.as_ref(), true, true)
}

pub fn string(state: &State, value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::String {
        return Ok(value.clone());
    }
    let text = numbers::text(value);
    pay_for(state, text.len())?;
    Ok(Value::from(text))
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
    let text = format!("{}\n", numbers::text(value));
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
    methods::padded(state, &numbers::text(value), width.unwrap_or(80), ' ', methods::Side::Both)
}

/// printf's formats, with bounded widths.
pub fn format(state: &mut State, format: &Value, values: Rest<Value>) -> Result<Value, Error> {
    check_widths(format.as_str().unwrap_or_default(), &values)?;
    let arguments: Vec<Value> = std::iter::once(format.clone()).chain(values.iter().cloned()).collect();
    let made = minijinja::formatting::format(
        minijinja::formatting::FormatStyle::Printf,
        arguments[0].as_str().ok_or_else(|| refused("the format should be a text"))?,
        &arguments[1..],
    )?;
    pay_for(state, made.len())?;
    Ok(Value::from(made))
}

/// The widest column of a format.
const MAX_WIDTH: u64 = 10_000;

/// Refuses widths that would make a text of gigabytes, in the format or among the values that it may take them from.
pub fn check_widths(format: &str, values: &[Value]) -> Result<(), Error> {
    let widest = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let too_wide = widest.map(|digits| digits.parse::<u64>().unwrap_or(u64::MAX)).any(|width| width > MAX_WIDTH);
    let from_values =
        format.contains('*') || format.matches('{').count() > format.matches('}').count() || nested(format);
    let is_wide = |value: &Value| {
        value.is_integer() && i64::try_from(value.clone()).map_or(true, |n| n.unsigned_abs() > MAX_WIDTH)
    };
    if too_wide || (from_values && values.iter().any(is_wide)) {
        return Err(refused(format!("a format has a width of more than {MAX_WIDTH}")));
    }
    Ok(())
}

/// True if a field of a format has a field in it.
fn nested(format: &str) -> bool {
    let mut depth = 0;
    format.replace("{{", "").chars().any(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth > 1
    })
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
        let mut joined = Vec::new();
        for list in begin.into_iter().chain(values.try_iter()?) {
            for item in list.try_iter()? {
                state.consume_fuel(1)?;
                joined.push(item);
            }
        }
        return Ok(Value::from(joined));
    }
    if values.try_iter()?.take(MAX_ITEMS).any(|value| is_list(&value)) || begin.as_ref().is_some_and(is_list) {
        return Err(refused("a sum of lists needs start=[]"));
    }
    filters::sum(state, values, attribute, start, kwargs)
}
