//! The tags of a template, rewritten where minijinja differs from Jinja: generation blocks (transformers' own), loops over None, and
//! operators.

use super::rewriter::Rewriter;
use super::tokens::{tokens_of, Kind};
use crate::guard::Fault;

/// The parser's time grows with the square of what one tag holds. The templates in use have some hundred.
const MAX_TOKENS: usize = 4096;

/// The template with these tags rewritten. What cannot be read stays as it is: the parser says what is wrong.
pub fn rewritten(source: &str) -> Result<String, Fault> {
    let mut text = String::with_capacity(source.len() + source.len() / 8);
    let mut rest = source;
    while let Some(at) = next_tag(rest) {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = if rest.starts_with("{#") {
            let end = rest.find("#}").map_or(rest.len(), |end| end + 2);
            text.push_str(&rest[..end]);
            Some(end)
        } else {
            tag(rest, &mut text)
        };
        let too_long = || {
            let line = 1 + source[..source.len() - rest.len()].matches('\n').count();
            Fault::new(format!("line {line}: a tag holds more than {MAX_TOKENS} words and signs"))
        };
        rest = &rest[taken.ok_or_else(too_long)?..];
    }
    text.push_str(rest);
    Ok(text)
}

fn next_tag(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|two| two[0] == b'{' && matches!(two[1], b'{' | b'%' | b'#'))
}

/// Writes the tag at the begin of `rest`; returns how many bytes were read. None: it holds too much.
fn tag(rest: &str, text: &mut String) -> Option<usize> {
    let close = if rest.starts_with("{{") { "}}" } else { "%}" };
    let Some((tokens, end)) = tokens_of(rest, close) else {
        text.push_str(rest);
        return Some(rest.len());
    };
    if tokens.len() > MAX_TOKENS {
        return None;
    }
    let whole = &rest[..end + 2];
    let word = tokens.first().filter(|token| close == "%}" && token.kind == Kind::Word).map(|token| token.of(rest));
    match word {
        Some("raw") => {
            let end = rest.find("endraw").map_or(rest.len(), |at| at + "endraw".len());
            text.push_str(&rest[..end]);
            return Some(end);
        }
        Some(name @ ("generation" | "endgeneration")) if tokens.len() == 1 => text.push_str(&generation(whole, name)),
        _ => match Rewriter::new(whole, &tokens) {
            None => text.push_str(whole),
            Some(mut rewriter) => {
                match word {
                    Some("for") => rewriter.loop_statement(),
                    Some(_) => rewriter.expressions(1..tokens.len()),
                    None => rewriter.expressions(0..tokens.len()),
                }
                rewriter.write(text);
            }
        },
    }
    Some(end + 2)
}

/// What stands for a generation tag: the block's text is captured, measured and written; its variables are its own. The dashes
/// stay on the outer sides.
fn generation(tag: &str, name: &str) -> String {
    let left = tag[2..].chars().next().filter(|mark| "+-".contains(*mark)).map_or(String::new(), String::from);
    let right = tag[..tag.len() - 2].chars().next_back().filter(|mark| "+-".contains(*mark));
    let right = right.map_or(String::new(), String::from);
    if name == "generation" {
        return format!("{{%{left} with %}}{{% set generated_text %}}{{% if true {right}%}}");
    }
    format!("{{%{left} endif %}}{{% endset %}}{{{{ generated(generated_text) }}}}{{% if true %}}{{% endif %}}{{% endwith {right}%}}")
}
