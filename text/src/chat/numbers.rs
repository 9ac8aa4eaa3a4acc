//! Values as Python prints them.

use minijinja::value::Value;
use minijinja::{Error, Output, State};

pub fn write(output: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    minijinja::escape_formatter(output, state, value)
}
