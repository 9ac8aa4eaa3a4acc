//! Python's methods of texts, lists and dictionaries: those of minijinja's pycompat, and what it lacks.

use minijinja::value::Value;
use minijinja::{Error, State};

pub fn call(state: &mut State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}
