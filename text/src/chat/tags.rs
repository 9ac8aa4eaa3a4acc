//! The tags of a template, rewritten where minijinja differs from Jinja: generation blocks (transformers' own), loops over None, and
//! sums of lists without a bound.

/// The template with these tags rewritten. What cannot be read stays as it is: the parser says what is wrong.
pub fn rewritten(source: &str) -> String {
    let mut text = String::with_capacity(source.len() + source.len() / 8);
    let mut rest = source;
    while let Some(at) = ["{{", "{%", "{#"].iter().filter_map(|mark| rest.find(mark)).min() {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = if rest.starts_with("{#") {
            let end = rest.find("#}").map_or(rest.len(), |end| end + 2);
            text.push_str(&rest[..end]);
            end
        } else {
            tag(rest, &mut text)
        };
        rest = &rest[taken..];
    }
    text.push_str(rest);
    text
}

/// Writes the tag at the begin of `rest`; returns how many bytes were read.
fn tag(rest: &str, text: &mut String) -> usize {
    let close = if rest.starts_with("{{") { "}}" } else { "%}" };
    let Some((tokens, end)) = tokens_of(rest, close) else {
        text.push_str(rest);
        return rest.len();
    };
    let whole = &rest[..end + 2];
    let words = tokens.first().filter(|token| close == "%}" && token.kind == Kind::Word).map(|token| token.of(rest));
    match words {
        Some("raw") => {
            let end = rest.find("endraw").map_or(rest.len(), |at| at + "endraw".len());
            text.push_str(&rest[..end]);
            return end;
        }
        Some(name @ ("generation" | "endgeneration")) if tokens.len() == 1 => text.push_str(&generation(whole, name)),
        Some("for") => insert(whole, loop_marks(rest, &tokens).into_iter().chain(sum_marks(rest, &tokens)), text),
        _ => insert(whole, sum_marks(rest, &tokens).into_iter(), text),
    }
    end + 2
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

/// `for x in LIST if …` becomes `for x in (LIST)|iterated if …`: Python does not iterate None.
fn loop_marks(rest: &str, tokens: &[Token]) -> Vec<(usize, &'static str)> {
    let at_top = |token: &&Token, words: &[&str]| {
        token.depth == 0 && token.kind == Kind::Word && words.contains(&token.of(rest))
    };
    let Some(from) = tokens.iter().position(|token| at_top(&token, &["in"])) else { return Vec::new() };
    let list = &tokens[from + 1..];
    let to = list.iter().position(|token| at_top(&token, &["if", "recursive"])).unwrap_or(list.len());
    match (list[..to].first(), list[..to].last()) {
        (Some(first), Some(last)) => vec![(first.begin, "("), (last.end, ")|iterated")],
        _ => Vec::new(),
    }
}

const NO_OPERANDS: [&str; 8] = ["and", "or", "not", "in", "if", "else", "elif", "is"];

/// `a + b` becomes `a|operand + b`: minijinja adds lists lazily, without counting what they hold.
fn sum_marks(rest: &str, tokens: &[Token]) -> Vec<(usize, &'static str)> {
    let is_literal = |token: &Token| matches!(token.kind, Kind::Text | Kind::Number);
    let mark = |three: &[Token]| {
        let [left, sum, right] = three else { return None };
        let operand = left.kind == Kind::Close || (left.kind == Kind::Word && !NO_OPERANDS.contains(&left.of(rest)));
        (sum.of(rest) == "+" && operand && !is_literal(right)).then_some((left.end, "|operand"))
    };
    tokens.windows(3).filter_map(mark).collect()
}

/// Writes `whole` with marks inserted.
fn insert(whole: &str, marks: impl Iterator<Item = (usize, &'static str)>, text: &mut String) {
    let mut marks: Vec<_> = marks.collect();
    marks.sort_by_key(|mark| mark.0);
    let mut from = 0;
    for (at, mark) in marks {
        text.push_str(&whole[from..at]);
        text.push_str(mark);
        from = at;
    }
    text.push_str(&whole[from..]);
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Word,
    Number,
    Text,
    Open,
    Close,
    Operator,
}

/// A token of a tag; `depth` counts the brackets around it.
struct Token {
    kind: Kind,
    begin: usize,
    end: usize,
    depth: usize,
}

impl Token {
    fn of<'a>(&self, text: &'a str) -> &'a str {
        &text[self.begin..self.end]
    }
}

/// The tokens of the tag at the begin of `text`, without the marks of white space, and where `close` is. None: it has no end.
fn tokens_of(text: &str, close: &str) -> Option<(Vec<Token>, usize)> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut depth = 0;
    let mut at = 2 + usize::from(matches!(bytes.get(2), Some(b'-' | b'+')));
    while at < bytes.len() {
        let left = &text[at..];
        if depth == 0
            && (left.starts_with(close)
                || (bytes[at] != b'}' && left[1..].starts_with(close) && "-+".contains(&left[..1])))
        {
            return Some((tokens, at + usize::from(!left.starts_with(close))));
        }
        let begin = at;
        let byte = bytes[at];
        let (kind, end) = match byte {
            b'\'' | b'"' => (Kind::Text, string_end(bytes, at)?),
            b'0'..=b'9' => (Kind::Number, number_end(bytes, at)),
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                (Kind::Word, at + bytes[at..].iter().take_while(|byte| is_word(byte)).count())
            }
            b'(' | b'[' | b'{' => (Kind::Open, at + 1),
            b')' | b']' | b'}' => (Kind::Close, at + 1),
            _ => (Kind::Operator, at + left.chars().next().map_or(1, char::len_utf8)),
        };
        at = end;
        if kind == Kind::Close {
            depth = usize::saturating_sub(depth, 1);
        }
        if !byte.is_ascii_whitespace() {
            tokens.push(Token { kind, begin, end, depth });
        }
        if kind == Kind::Open {
            depth += 1;
        }
    }
    None
}

fn string_end(bytes: &[u8], begin: usize) -> Option<usize> {
    let mut at = begin + 1;
    while at < bytes.len() && bytes[at] != bytes[begin] {
        at += 1 + usize::from(bytes[at] == b'\\');
    }
    (at < bytes.len()).then_some(at + 1)
}

fn number_end(bytes: &[u8], begin: usize) -> usize {
    let mut at = begin;
    while at < bytes.len() {
        let sign_of_exponent = matches!(bytes[at], b'+' | b'-') && matches!(bytes[at - 1], b'e' | b'E');
        if !(bytes[at].is_ascii_alphanumeric() || matches!(bytes[at], b'_' | b'.') || sign_of_exponent) {
            break;
        }
        at += 1;
    }
    at
}
