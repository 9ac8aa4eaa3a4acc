//! A conversation as templates read it: converted once, rendered often.

use minijinja::value::Value;
use serde_json::{Map, Value as Json};

use super::stack::on_large_stack;
use super::PROGRESS;
use crate::guard::Fault;

pub struct Conversation {
    messages: Vec<Value>,
    tools: Value,
    /// Special tokens, add_generation_prompt and the template's own arguments.
    given: Vec<(Value, Value)>,
}

impl Conversation {
    /// From JSON texts: a list of messages, a list or null, an object.
    pub fn open(messages: &str, tools: &str, variables: &str) -> Result<Self, Fault> {
        on_large_stack(|| {
            let mut messages: Json = parsed("messages", messages)?;
            let Json::Array(list) = &mut messages else {
                return Err(Fault::new("messages: should be a list".to_string()));
            };
            if list.is_empty() {
                return Err(Fault::new("messages: there is none".to_string()));
            }
            list.iter_mut().for_each(prepare_message);
            let messages = std::mem::take(list).into_iter().map(value_of).collect();
            let tools = value_of(parsed("tools", tools)?);
            let given: Map<String, Json> = parsed("variables", variables)?;
            let given = given.into_iter().map(|(name, value)| (Value::from(name), value_of(value))).collect();
            Ok(Conversation { messages, tools, given })
        })
    }

    /// What a template may name, with the first `count` messages.
    pub fn variables(
        &self,
        count: usize,
        add_generation_prompt: Option<bool>,
        progress: Value,
    ) -> Result<Value, Fault> {
        let messages = self.messages.get(..count).filter(|some| !some.is_empty());
        let messages = messages.ok_or_else(|| Fault::new(format!("messages: there are {}", self.messages.len())))?;
        let mut variables: Vec<(Value, Value)> = Vec::with_capacity(self.given.len() + 7);
        for name in ["tools", "documents"] {
            variables.push((Value::from(name), Value::from(())));
        }
        variables.push((Value::from("add_generation_prompt"), Value::from(false)));
        variables.extend(self.given.iter().cloned());
        if let Some(add) = add_generation_prompt {
            variables.push((Value::from("add_generation_prompt"), Value::from(add)));
        }
        variables.push((Value::from("messages"), Value::from(messages.to_vec())));
        variables.push((Value::from("tools"), self.tools.clone()));
        variables.push((Value::from(PROGRESS), progress));
        Ok(Value::from_pairs(variables))
    }
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
