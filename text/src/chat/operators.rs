//! What stands for the operators of a template (rewriter.rs): as Python has them, and bounded.

use minijinja::formatting::{self, FormatStyle};
use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, State};

use super::filters::{pay_for, refused};
use super::numbers;
use super::output::MAX_OUTPUT_BYTES;

/// What one operation may look into. Lists in templates have some hundred items.
const MAX_VALUES: usize = 500_000;
const MAX_BYTES: usize = 16 << 20;
const MAX_NESTING: usize = 200;
/// A text that is worked on: no longer than the output may be.
pub const MAX_TEXT_BYTES: usize = MAX_OUTPUT_BYTES;

/// What a value holds.
#[derive(Default)]
pub struct Size {
    values: usize,
    bytes: usize,
}

impl Size {
    /// Refuses what is nested or shared so often that printing or comparing it would not end.
    pub fn of(state: &State, value: &Value) -> Result<Self, Error> {
        let mut size = Size::default();
        size.add(value, 0)?;
        state.consume_fuel((size.values / 8 + size.bytes / 4096) as u64)?;
        Ok(size)
    }

    /// About as many bytes as the text of the value has.
    pub fn text_bytes(&self) -> usize {
        self.bytes + 8 * self.values
    }

    fn add(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.values += 1;
        self.bytes += value.as_str().map_or(0, str::len);
        if depth > MAX_NESTING {
            return Err(refused(format!("values are nested more than {MAX_NESTING} deep")));
        }
        if self.values > MAX_VALUES || self.bytes > MAX_BYTES {
            return Err(refused(format!("a value holds more than {MAX_VALUES} values or {MAX_BYTES} bytes")));
        }
        match value.kind() {
            ValueKind::Map => {
                for (key, item) in value.as_object().and_then(|map| map.try_iter_pairs()).into_iter().flatten() {
                    self.add(&key, depth + 1)?;
                    self.add(&item, depth + 1)?;
                }
            }
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.add(&item, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The value, if it is small enough to be looked into.
pub fn measured(state: &State, value: &Value) -> Result<Value, Error> {
    if value.as_object().is_some() {
        Size::of(state, value)?;
    } else {
        pay_for_text(state, value)?;
    }
    Ok(value.clone())
}

fn pay_for_text(state: &State, value: &Value) -> Result<(), Error> {
    let bytes = value.as_str().map_or(0, str::len);
    if bytes > MAX_TEXT_BYTES {
        return Err(refused(format!("it works on a text of more than {MAX_TEXT_BYTES} bytes")));
    }
    state.consume_fuel((bytes / 64) as u64)
}

/// A side of `a ~ b`.
pub fn text(state: &State, value: &Value) -> Result<Value, Error> {
    pay_for_text(state, value)?;
    match value.as_str() {
        Some(_) if !value.is_safe() => Ok(value.clone()),
        Some(text) => Ok(Value::from(text)),
        None => Ok(Value::from(numbers::text(state, value)?)),
    }
}

/// The list of a loop: Python does not iterate None.
pub fn iterated(value: &Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(refused("None is not iterable"));
    }
    Ok(value.clone())
}

/// What a subscript or a slice is taken of. A slice is lazy; one of a slice is taken of a list, so that they do not pile up.
pub fn indexed(state: &State, value: &Value) -> Result<Value, Error> {
    pay_for_text(state, value)?;
    if value.kind() == ValueKind::Iterable && value.len().is_some() {
        return listed([value]);
    }
    Ok(value.clone())
}

pub fn generator(_value: &Value) -> Result<Value, Error> {
    Err(refused("tojson: a generator is no JSON: use the filter list before it"))
}

/// The items of lists, in one.
pub fn listed<'a>(lists: impl IntoIterator<Item = &'a Value> + Clone) -> Result<Value, Error> {
    let length = lists.clone().into_iter().map(|list| list.len().unwrap_or(0)).fold(0, usize::saturating_add);
    if length > MAX_VALUES {
        return Err(refused(format!("it makes a list of more than {MAX_VALUES} items")));
    }
    let mut items = Vec::with_capacity(length);
    for list in lists {
        items.extend(list.try_iter()?);
    }
    Ok(Value::from(items))
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && !value.is_tuple() && value.len().is_some()
}

/// Numbers of an operation: Python's True is 1.
enum Pair {
    Integers(i128, i128),
    Floats(f64, f64),
}

fn pair(left: &Value, right: &Value) -> Option<Pair> {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(left) || !is_number(right) {
        return None;
    }
    if numbers::as_float(left).is_none() && numbers::as_float(right).is_none() {
        return Some(Pair::Integers(i128::try_from(left.clone()).ok()?, i128::try_from(right.clone()).ok()?));
    }
    let float = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        _ => f64::try_from(value.clone()).ok(),
    };
    Some(Pair::Floats(float(left)?, float(right)?))
}

fn integer(value: Option<i128>, operator: &str) -> Result<Value, Error> {
    let value = value.ok_or_else(|| refused(format!("{operator}: the integer has more than 128 bits")))?;
    Ok(i64::try_from(value).map_or_else(|_| Value::from(value), Value::from))
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Error {
    refused(format!("unsupported operands of {operator}: {} and {}", left.kind(), right.kind()))
}

/// `left + right`. A text that is marked as safe escapes the other one.
pub fn plus(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        return match (left.is_safe(), right.is_safe()) {
            (false, false) => joined(state, a, b).map(Value::from),
            (true, false) => joined(state, a, &escaped(b)).map(Value::from_safe_string),
            (false, true) => joined(state, &escaped(a), b).map(Value::from_safe_string),
            (true, true) => joined(state, a, b).map(Value::from_safe_string),
        };
    }
    if left.is_tuple() && right.is_tuple() {
        let items: Vec<Value> = listed([left, right])?.try_iter()?.collect();
        return Ok(Value::from(Tuple::from(items)));
    }
    if is_list(left) && is_list(right) {
        return listed([left, right]);
    }
    match pair(left, right) {
        Some(Pair::Integers(a, b)) => integer(a.checked_add(b), "+"),
        Some(Pair::Floats(a, b)) => Ok(Value::from(a + b)),
        None => Err(unsupported("+", left, right)),
    }
}

fn joined(state: &State, left: &str, right: &str) -> Result<String, Error> {
    if left.len() + right.len() > MAX_TEXT_BYTES {
        return Err(refused(format!("+: it makes a text of more than {MAX_TEXT_BYTES} bytes")));
    }
    state.consume_fuel(((left.len() + right.len()) / 64) as u64)?;
    Ok([left, right].concat())
}

/// As markupsafe escapes.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '\'' => safe.push_str("&#39;"),
            '"' => safe.push_str("&#34;"),
            c => safe.push(c),
        }
    }
    safe
}

/// `left * right`: numbers, and texts and lists that are repeated.
pub fn times(left: &Value, right: &Value) -> Result<Value, Error> {
    let is_count = |value: &Value| value.is_integer() || value.kind() == ValueKind::Bool;
    let (repeated, count) = if is_count(left) { (right, left) } else { (left, right) };
    let is_repeated = repeated.as_str().is_some() || repeated.is_tuple() || is_list(repeated);
    if is_repeated && is_count(count) {
        let count = usize::try_from(i128::try_from(count.clone())?.max(0)).unwrap_or(usize::MAX);
        return repeat(repeated, count);
    }
    match pair(left, right) {
        Some(Pair::Integers(a, b)) => integer(a.checked_mul(b), "*"),
        Some(Pair::Floats(a, b)) => Ok(Value::from(a * b)),
        None => Err(unsupported("*", left, right)),
    }
}

fn repeat(value: &Value, count: usize) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if text.len().saturating_mul(count) > MAX_TEXT_BYTES {
            return Err(refused(format!("*: it makes a text of more than {MAX_TEXT_BYTES} bytes")));
        }
        let repeated = text.repeat(count);
        return Ok(if value.is_safe() { Value::from_safe_string(repeated) } else { Value::from(repeated) });
    }
    // A count may be as large as it likes if the list is empty.
    let is_empty = value.len() == Some(0);
    let list = listed(std::iter::repeat_n(value, if is_empty { 0 } else { count.min(MAX_VALUES + 1) }))?;
    if value.is_tuple() {
        return Ok(Value::from(Tuple::from(list.try_iter()?.collect::<Vec<_>>())));
    }
    Ok(list)
}

/// `left % right`: of numbers with the divisor's sign, and a text with the values of its format.
pub fn remainder(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(format) = left.as_str() {
        let values: Vec<Value> = if right.is_tuple() { right.try_iter()?.collect() } else { vec![right.clone()] };
        return formatted(state, FormatStyle::Printf, format, &values);
    }
    match pair(left, right) {
        Some(Pair::Integers(_, 0)) => Err(refused("%: the divisor is 0")),
        Some(Pair::Integers(a, b)) => {
            let rest = a.checked_rem(b).unwrap_or(0);
            integer(Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }), "%")
        }
        Some(Pair::Floats(_, 0.0)) => Err(refused("%: the divisor is 0")),
        Some(Pair::Floats(a, b)) => {
            let rest = a % b;
            Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }))
        }
        None => Err(unsupported("%", left, right)),
    }
}

/// The widest column of a format.
const MAX_WIDTH: usize = 10_000;

/// A format with its values: widths and the whole are bounded before the text is made.
pub fn formatted(state: &State, style: FormatStyle, format: &str, values: &[Value]) -> Result<Value, Error> {
    let mut bytes = 0_usize;
    let mut widest = 0_usize;
    for value in values {
        bytes = bytes.max(Size::of(state, value)?.text_bytes());
        let number = if value.is_integer() { i64::try_from(value.clone()).ok() } else { None };
        widest = widest.max(number.map_or(0, |number| usize::try_from(number.unsigned_abs()).unwrap_or(usize::MAX)));
    }
    let digits = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let written = digits.map(|digits| digits.parse::<usize>().unwrap_or(usize::MAX)).max().unwrap_or(0);
    let from_values = format.contains('*') || is_nested(format);
    if written > MAX_WIDTH || (from_values && widest > MAX_WIDTH) {
        return Err(refused(format!("a format has a width of more than {MAX_WIDTH}")));
    }
    let mark = if style == FormatStyle::Printf { '%' } else { '{' };
    let width = if from_values { written.max(widest) } else { written };
    let fields = format.matches(mark).count();
    state.consume_fuel(8 * (fields + values.len()) as u64)?;
    let longest = bytes.saturating_add(width).saturating_mul(fields);
    if longest.saturating_add(format.len()) > MAX_BYTES {
        return Err(refused(format!("a format makes a text of more than {MAX_BYTES} bytes")));
    }
    let made = formatting::format(style, format, values)?;
    pay_for(state, made.len())?;
    Ok(Value::from(made))
}

/// True if a field of a format has a field in it.
fn is_nested(format: &str) -> bool {
    let mut depth = 0;
    format.replace("{{", "").chars().any(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth > 1
    })
}
