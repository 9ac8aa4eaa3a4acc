//! A template and its variables as transformers prepares them.

use minijinja::value::Value;
use serde_json::{Map, Value as Json};

use super::{Input, PROGRESS};
use crate::guard::Fault;

/// The template with line ends of Unix, without the last one, and with the tags that minijinja has.
pub fn prepared(source: &str) -> Result<String, Fault> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    super::tags::rewritten(source)
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
