//! Values as Python prints them. minijinja does, except for numbers with an exponent.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, Output, State};

/// Writes a value into a template's output.
pub fn write(output: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match special(value) {
        Some(text) => output.write_str(&text).map_err(Error::from),
        None => minijinja::escape_formatter(output, state, value),
    }
}

/// `str(value)`.
pub fn text(value: &Value) -> String {
    special(value).unwrap_or_else(|| value.to_string())
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

/// Deeper values are printed by minijinja.
const MAX_DEPTH: usize = 200;

/// The text of a value that minijinja prints in another way; None if it does not.
fn special(value: &Value) -> Option<String> {
    has_exponent(value, 0).then(|| repr(value))
}

fn has_exponent(value: &Value, depth: usize) -> bool {
    if depth > MAX_DEPTH {
        return false;
    }
    match value.kind() {
        ValueKind::Number => as_float(value).is_some_and(|number| float(number).contains('e')),
        ValueKind::Seq => items(value).iter().any(|item| has_exponent(item, depth + 1)),
        ValueKind::Map => pairs(value).iter().any(|(_, item)| has_exponent(item, depth + 1)),
        _ => false,
    }
}

fn repr(value: &Value) -> String {
    if let Some(number) = as_float(value) {
        return float(number);
    }
    if !has_exponent(value, 0) {
        let listed = Value::from(vec![value.clone()]).to_string();
        return listed[1..listed.len() - 1].to_string();
    }
    if value.kind() == ValueKind::Map {
        let texts: Vec<_> = pairs(value).iter().map(|(key, item)| format!("{}: {}", repr(key), repr(item))).collect();
        return format!("{{{}}}", texts.join(", "));
    }
    let texts: Vec<_> = items(value).iter().map(repr).collect();
    format!("[{}]", texts.join(", "))
}

fn items(value: &Value) -> Vec<Value> {
    value.try_iter().map(|items| items.collect()).unwrap_or_default()
}

pub fn pairs(value: &Value) -> Vec<(Value, Value)> {
    value.as_object().and_then(|object| object.try_iter_pairs().map(|pairs| pairs.collect())).unwrap_or_default()
}
