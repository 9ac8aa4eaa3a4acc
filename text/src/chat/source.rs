//! A template's text as transformers prepares it.

use crate::guard::Fault;

/// The template with line ends of Unix, without the last one, and with the tags that minijinja has.
pub fn prepared(source: &str) -> Result<String, Fault> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    super::tags::rewritten(source)
}
