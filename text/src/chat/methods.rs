//! Python's methods of texts, lists and dictionaries: those of minijinja's pycompat, and what it lacks or has in another way.

use std::collections::HashSet;

use minijinja::formatting::FormatStyle;
use minijinja::value::{from_args, Kwargs, Tuple, Value, ValueKind};
use minijinja::{Error, State};

use super::filters::{pay_for, pay_for_work, refused};
use super::operators::{formatted, measured, MAX_TEXT_BYTES};

pub fn call(state: &mut State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    // The methods of dictionaries look at keys alone.
    if value.kind() != ValueKind::Map {
        measured(state, value)?;
    }
    for argument in arguments {
        measured(state, argument)?;
    }
    let own = value.as_str().and_then(|text| text_method(state, text, method, arguments));
    own.unwrap_or_else(|| minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments))
}

/// None: pycompat has it, or nobody.
fn text_method(state: &State, text: &str, method: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "strip" => with_chars(arguments, |chars| strip(state, text, chars, true, true)),
        "lstrip" => with_chars(arguments, |chars| strip(state, text, chars, true, false)),
        "rstrip" => with_chars(arguments, |chars| strip(state, text, chars, false, true)),
        "split" => split(text, arguments, false),
        "rsplit" => split(text, arguments, true),
        "splitlines" => lines(text, arguments),
        "removeprefix" => one(arguments).map(|part| Value::from(text.strip_prefix(&*part).unwrap_or(text))),
        "removesuffix" => one(arguments).map(|part| Value::from(text.strip_suffix(&*part).unwrap_or(text))),
        "partition" => one(arguments).and_then(|part| partition(text, &part, text.find(&*part), true)),
        "rpartition" => one(arguments).and_then(|part| partition(text, &part, text.rfind(&*part), false)),
        "index" => one(arguments).and_then(|part| index(text, text.find(&*part))),
        "rindex" => one(arguments).and_then(|part| index(text, text.rfind(&*part))),
        "ljust" => pad(state, text, arguments, Side::Right),
        "rjust" => pad(state, text, arguments, Side::Left),
        "center" => pad(state, text, arguments, Side::Both),
        "zfill" => from_args::<(i64,)>(arguments).and_then(|(width,)| zero_filled(state, text, width)),
        "isspace" => Ok(Value::from(!text.is_empty() && text.chars().all(is_space))),
        "casefold" => Ok(Value::from(text.to_lowercase())),
        "swapcase" => Ok(Value::from(text.chars().flat_map(swapped).collect::<String>())),
        "format" => formatted(state, FormatStyle::StrFormat, text, arguments),
        "join" => one_value(arguments).and_then(|list| join(state, text, &list)),
        _ => return None,
    })
}

/// What Python's `str.isspace` holds for white: also U+001C to U+001F.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn swapped(c: char) -> Vec<char> {
    if c.is_uppercase() {
        c.to_lowercase().collect()
    } else {
        c.to_uppercase().collect()
    }
}

fn one(arguments: &[Value]) -> Result<String, Error> {
    from_args::<(String,)>(arguments).map(|(part,)| part)
}

fn one_value(arguments: &[Value]) -> Result<Value, Error> {
    from_args::<(Value,)>(arguments).map(|(value,)| value)
}

/// Python joins texts alone.
fn join(state: &State, separator: &str, list: &Value) -> Result<Value, Error> {
    let mut joined = String::new();
    for (i, item) in list.try_iter()?.enumerate() {
        let text = item.as_str().ok_or_else(|| refused("join: the items should be texts"))?;
        joined.push_str(if i > 0 { separator } else { "" });
        joined.push_str(text);
        state.consume_fuel(1)?;
        if joined.len() > MAX_TEXT_BYTES {
            return Err(refused(format!("join: it makes a text of more than {MAX_TEXT_BYTES} bytes")));
        }
    }
    Ok(Value::from(joined))
}

fn with_chars(arguments: &[Value], work: impl FnOnce(Option<&Value>) -> Result<Value, Error>) -> Result<Value, Error> {
    let (chars,): (Option<Value>,) = from_args(arguments)?;
    work(chars.as_ref())
}

/// Python's `strip`, at the sides that are asked for.
pub fn strip(state: &State, text: &str, chars: Option<&Value>, left: bool, right: bool) -> Result<Value, Error> {
    let chars = match chars {
        Some(value) if !value.is_none() => Some(value.as_str().ok_or_else(|| refused("strip: should be a text"))?),
        _ => None,
    };
    pay_for_work(state, chars.map_or(0, str::len))?;
    let chars: Option<HashSet<char>> = chars.map(|chars| chars.chars().collect());
    let taken = |c: char| chars.as_ref().map_or_else(|| is_space(c), |chars| chars.contains(&c));
    let text = if left { text.trim_start_matches(taken) } else { text };
    Ok(Value::from(if right { text.trim_end_matches(taken) } else { text }))
}

fn split(text: &str, arguments: &[Value], from_right: bool) -> Result<Value, Error> {
    let (separator, most, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(arguments)?;
    let separator = separator.or(kwargs.get::<Option<Value>>("sep")?).filter(|value| !value.is_none());
    let most = most.or(kwargs.get::<Option<i64>>("maxsplit")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    let most = usize::try_from(most).unwrap_or(usize::MAX - 1);
    let Some(separator) = separator else {
        return Ok(Value::from(words(text, most, from_right)));
    };
    let separator = separator.as_str().ok_or_else(|| refused("split: the separator should be a text"))?;
    if separator.is_empty() {
        return Err(refused("split: the separator is empty"));
    }
    let mut parts: Vec<Value> = if from_right {
        text.rsplitn(most + 1, separator).map(Value::from).collect()
    } else {
        text.splitn(most + 1, separator).map(Value::from).collect()
    };
    if from_right {
        parts.reverse();
    }
    Ok(Value::from(parts))
}

/// Split at white space; the rest after `most` splits is one part.
fn words(text: &str, most: usize, from_right: bool) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut rest = text.trim_matches(is_space);
    while !rest.is_empty() {
        let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let (Some(at), true) = (cut, parts.len() < most) else {
            parts.push(Value::from(rest));
            break;
        };
        let after = at + rest[at..].chars().next().map_or(1, char::len_utf8);
        let (part, left) = if from_right { (&rest[after..], &rest[..at]) } else { (&rest[..at], &rest[after..]) };
        parts.push(Value::from(part));
        rest = if from_right { left.trim_end_matches(is_space) } else { left.trim_start_matches(is_space) };
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn lines(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (keep, kwargs): (Option<bool>, Kwargs) = from_args(arguments)?;
    let keep = keep.or(kwargs.get::<Option<bool>>("keepends")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    Ok(Value::from(split_lines(text, keep).into_iter().map(Value::from).collect::<Vec<_>>()))
}

/// Python's `str.splitlines`.
pub fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let length =
            if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(1, char::len_utf8) };
        parts.push(&rest[..if keep_ends { at + length } else { at }]);
        rest = &rest[at + length..];
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}

fn partition(text: &str, part: &str, found: Option<usize>, at_end: bool) -> Result<Value, Error> {
    if part.is_empty() {
        return Err(refused("partition: the separator is empty"));
    }
    let parts = match found {
        Some(at) => [&text[..at], part, &text[at + part.len()..]],
        None if at_end => [text, "", ""],
        None => ["", "", text],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn index(text: &str, found: Option<usize>) -> Result<Value, Error> {
    let at = found.ok_or_else(|| refused("index: the text is not there"))?;
    Ok(Value::from(text[..at].chars().count()))
}

pub enum Side {
    Left,
    Right,
    Both,
}

fn pad(state: &State, text: &str, arguments: &[Value], side: Side) -> Result<Value, Error> {
    let (width, fill): (i64, Option<String>) = from_args(arguments)?;
    let fill = fill.unwrap_or_else(|| " ".to_string());
    let mut chars = fill.chars();
    let (Some(fill), None) = (chars.next(), chars.next()) else {
        return Err(refused("the fill should be one character"));
    };
    padded(state, text, width, fill, side)
}

/// A text made as wide as `width`, as Python does.
pub fn padded(state: &State, text: &str, width: i64, fill: char, side: Side) -> Result<Value, Error> {
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    let missing = width.saturating_sub(text.chars().count());
    pay_for(state, text.len().saturating_add(missing.saturating_mul(fill.len_utf8())))?;
    let left = match side {
        Side::Left => missing,
        Side::Right => 0,
        Side::Both => missing / 2 + (missing & width & 1),
    };
    let fill_of = |count: usize| fill.to_string().repeat(count);
    Ok(Value::from(format!("{}{text}{}", fill_of(left), fill_of(missing - left))))
}

fn zero_filled(state: &State, text: &str, width: i64) -> Result<Value, Error> {
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    let filled = padded(state, digits, width - sign.len() as i64, '0', Side::Left)?;
    Ok(Value::from(format!("{sign}{filled}")))
}
