//! A template and its variables as transformers prepares them.

use minijinja::value::Value;
use serde_json::{Map, Value as Json};

use super::{Input, PROGRESS};
use crate::guard::Fault;

/// The template with line ends of Unix, and with its generation blocks written in tags that Jinja has.
pub fn prepared(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut text = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{#")).min() {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = if rest.starts_with("{#") {
            let end = rest.find("#}").map_or(rest.len(), |end| end + 2);
            text.push_str(&rest[..end]);
            end
        } else if let Some((taken, written)) = generation_tag(rest) {
            text.push_str(&written);
            taken
        } else {
            text.push_str("{%");
            2
        };
        rest = &rest[taken..];
    }
    text.push_str(rest);
    text
}

/// The length of a generation tag at the begin of `text`, and what stands for it. The block's text is captured, measured and
/// written; its variables are its own. The dashes stay on the outer sides.
fn generation_tag(text: &str) -> Option<(usize, String)> {
    let end = text.find("%}")?;
    let inside = &text[2..end];
    let (left, inside) = match inside.chars().next()? {
        mark @ ('-' | '+') => (mark.to_string(), &inside[1..]),
        _ => (String::new(), inside),
    };
    let (right, inside) = match inside.chars().next_back()? {
        mark @ ('-' | '+') => (mark.to_string(), &inside[..inside.len() - 1]),
        _ => (String::new(), inside),
    };
    let written = match inside.trim() {
        "generation" => format!("{{%{left} with %}}{{% set generated_text %}}{{% if true {right}%}}"),
        "endgeneration" => {
            format!("{{%{left} endif %}}{{% endset %}}{{{{ generated(generated_text) }}}}{{% endwith {right}%}}")
        }
        _ => return None,
    };
    Some((end + 2, written))
}

/// What the template may name.
pub fn variables(input: &Input, progress: Value) -> Result<Value, Fault> {
    let mut messages: Json = parsed("messages", input.messages)?;
    let tools: Json = parsed("tools", input.tools)?;
    let given: Map<String, Json> = parsed("variables", input.variables)?;
    let Json::Array(list) = &mut messages else {
        return Err(Fault::new("messages: should be a list".to_string()));
    };
    if list.is_empty() {
        return Err(Fault::new("messages: there is none".to_string()));
    }
    list.iter_mut().for_each(prepare_message);
    let mut variables: Vec<(Value, Value)> = Vec::with_capacity(given.len() + 5);
    for name in ["tools", "documents"] {
        variables.push((Value::from(name), Value::from(())));
    }
    variables.push((Value::from("add_generation_prompt"), Value::from(false)));
    variables.extend(given.into_iter().map(|(name, value)| (Value::from(name), value_of(value))));
    variables.push((Value::from("messages"), value_of(messages)));
    variables.push((Value::from("tools"), value_of(tools)));
    variables.push((Value::from(PROGRESS), progress));
    Ok(Value::from_pairs(variables))
}

fn value_of(json: Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (_, Some(value)) => Value::from(value),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text),
        Json::Array(items) => Value::from(items.into_iter().map(value_of).collect::<Vec<_>>()),
        Json::Object(fields) => Value::from_pairs(fields.into_iter().map(|(name, value)| (name, value_of(value)))),
    }
}

fn parsed<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| Fault::new(format!("{what}: {error}")))
}

/// Drops fields that are null, and fills the names that reasoning has from each other.
fn prepare_message(message: &mut Json) {
    let Json::Object(fields) = message else { return };
    fields.retain(|_, value| !value.is_null());
    let names = ["reasoning_content", "thinking", "reasoning"];
    let Some(reasoning) = names.iter().find_map(|name| fields.get(*name)).cloned() else { return };
    if !fields.contains_key("thinking") {
        let rest = std::mem::take(fields);
        fields.insert("thinking".to_string(), reasoning.clone());
        fields.extend(rest);
    }
    fields.insert("reasoning_content".to_string(), reasoning);
}
