//! Templates that ship, for models without one. Their texts are this project's own.

use crate::guard::Fault;

const NAMED: [(&str, &str); 7] = [
    ("chatml", include_str!("templates/chatml.jinja")),
    ("llama2", include_str!("templates/llama2.jinja")),
    ("llama3", include_str!("templates/llama3.jinja")),
    ("mistral", include_str!("templates/mistral.jinja")),
    ("gemma", include_str!("templates/gemma.jinja")),
    ("zephyr", include_str!("templates/zephyr.jinja")),
    ("alpaca", include_str!("templates/alpaca.jinja")),
];

/// The text of a named template. The fault lists all names.
pub fn source_of(name: &str) -> Result<&'static str, Fault> {
    let found = NAMED.iter().find(|named| named.0 == name);
    found.map(|named| named.1).ok_or_else(|| {
        let names: Vec<_> = NAMED.iter().map(|named| named.0).collect();
        Fault::new(format!("no template is named {name:?}: the names are {}", names.join(", ")))
    })
}
