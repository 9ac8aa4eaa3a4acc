//! The tokens of a tag.

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Word,
    Number,
    Text,
    Open,
    Close,
    Operator,
}

/// A token of a tag: the bytes [begin, end).
#[derive(Clone, Copy)]
pub struct Token {
    pub kind: Kind,
    pub begin: usize,
    pub end: usize,
}

impl Token {
    pub fn of<'a>(&self, text: &'a str) -> &'a str {
        &text[self.begin..self.end]
    }
}

/// The tokens of the tag at the begin of `text`, without the marks of white space, and where `close` is. None: it has no end.
pub fn tokens_of(text: &str, close: &str) -> Option<(Vec<Token>, usize)> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut depth = 0_usize;
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
        let (kind, end) = match bytes[at] {
            b'\'' | b'"' => (Kind::Text, string_end(bytes, at)?),
            b'0'..=b'9' => (Kind::Number, number_end(bytes, at)),
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                (Kind::Word, at + bytes[at..].iter().take_while(|byte| is_word(byte)).count())
            }
            b'(' | b'[' | b'{' => (Kind::Open, at + 1),
            b')' | b']' | b'}' => (Kind::Close, at + 1),
            _ if LONG_OPERATORS.iter().any(|operator| left.starts_with(operator)) => (Kind::Operator, at + 2),
            _ => (Kind::Operator, at + left.chars().next().map_or(1, char::len_utf8)),
        };
        at = end;
        match kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        if !bytes[begin].is_ascii_whitespace() {
            tokens.push(Token { kind, begin, end });
        }
    }
    None
}

const LONG_OPERATORS: [&str; 6] = ["==", "!=", "<=", ">=", "//", "**"];

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
