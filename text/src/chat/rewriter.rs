//! The operators of a tag, rewritten where minijinja differs from Jinja or has no bound: `a + b`, `a ~ b`, `a % b`, comparisons and
//! what looks into values. The filters that take their places are in operators.rs.

use std::ops::Range;

use super::tokens::{Kind, Token};

/// Takes `removed` bytes out of the tag and puts `text` there.
pub struct Edit {
    at: usize,
    removed: usize,
    text: &'static str,
}

/// Words between expressions: those of statements only begin a tag.
const SEPARATORS: [&str; 7] = ["and", "or", "not", "in", "if", "else", "recursive"];
const COMPARISONS: [&str; 7] = ["==", "!=", "<", "<=", ">", ">=", "in"];
const CONSTANTS: [&str; 6] = ["none", "None", "true", "True", "false", "False"];
/// Filters that do not look into the values of a list, or have bounds of their own.
const SHALLOW_FILTERS: [&str; 13] = [
    "count", "d", "default", "first", "items", "last", "length", "list", "measured", "safe", "string", "tojson", "trim",
];

/// Filters whose value is a generator in Jinja, which is no JSON.
const GENERATORS: [&str; 9] =
    ["batch", "items", "map", "reject", "rejectattr", "select", "selectattr", "slice", "unique"];

/// A tag in pieces.
pub struct Rewriter<'a> {
    tag: &'a str,
    tokens: &'a [Token],
    /// Of an opening bracket: the number of its closing one.
    closing: Vec<usize>,
    edits: Vec<Edit>,
}

/// Tags with more brackets in each other are left to the parser, which refuses them.
const MAX_BRACKETS: usize = 150;

impl<'a> Rewriter<'a> {
    /// None: the brackets do not fit.
    pub fn new(tag: &'a str, tokens: &'a [Token]) -> Option<Self> {
        let mut closing = vec![0; tokens.len()];
        let mut open = Vec::new();
        for (i, token) in tokens.iter().enumerate() {
            match token.kind {
                Kind::Open => open.push(i),
                Kind::Close => closing[open.pop()?] = i,
                _ => {}
            }
            if open.len() > MAX_BRACKETS {
                return None;
            }
        }
        open.is_empty().then_some(Rewriter { tag, tokens, closing, edits: Vec::new() })
    }

    /// Rewrites the expressions between the separators of a list, of arguments or of a statement.
    pub fn expressions(&mut self, range: Range<usize>) {
        for part in self.split(range, |text| matches!(text, "," | ":" | "=")) {
            self.expression(part);
        }
    }

    /// `for x in LIST if …` becomes `for x in (LIST)|iterated if …`: Python does not iterate None.
    pub fn loop_statement(&mut self) {
        let all = 1..self.tokens.len();
        let Some(from) = self.items(all.clone()).find(|i| self.text(*i) == "in") else { return };
        self.expressions(from + 1..all.end);
        let ends = |i: &usize| matches!(self.text(*i), "if" | "recursive");
        let to = self.items(from + 1..all.end).find(ends).unwrap_or(all.end);
        self.wrap(from + 1..to, "iterated");
    }

    /// Writes the tag with its edits.
    pub fn write(mut self, text: &mut String) {
        self.edits.sort_by_key(|edit| edit.at);
        let mut from = 0;
        for edit in &self.edits {
            text.push_str(&self.tag[from..edit.at]);
            text.push_str(edit.text);
            from = edit.at + edit.removed;
        }
        text.push_str(&self.tag[from..]);
    }

    fn text(&self, i: usize) -> &'a str {
        self.tokens[i].of(self.tag)
    }

    /// The numbers of the tokens outside of brackets; an opening bracket stands for all that it holds.
    fn items(&self, range: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        let mut next = range.start;
        std::iter::from_fn(move || {
            let at = next;
            next = if at < range.end && self.tokens[at].kind == Kind::Open { self.closing[at] + 1 } else { at + 1 };
            (at < range.end).then_some(at)
        })
    }

    /// Cut at the tokens of that text outside of brackets.
    fn split(&self, range: Range<usize>, cuts: impl Fn(&str) -> bool) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let mut begin = range.start;
        for i in self.items(range.clone()).filter(|i| cuts(self.text(*i))) {
            parts.push(begin..i);
            begin = i + 1;
        }
        parts.push(begin..range.end);
        parts
    }

    fn expression(&mut self, range: Range<usize>) {
        for i in self.items(range.clone()).collect::<Vec<_>>() {
            match self.text(i) {
                "(" | "[" | "{" => self.bracket(i, range.start),
                "|" => self.filter(i, range.start, range.end),
                _ => {}
            }
        }
        let mut begin = range.start;
        let mut left: Option<(Range<usize>, &str)> = None;
        for separator in self.separators(range.clone()).into_iter().chain([range.end..range.end]) {
            let operand = begin..separator.start;
            self.sum(operand.clone());
            if let Some((before, operator)) = left.take() {
                self.compared(before, operator, &operand);
            }
            let operator = separator.clone().last().map_or("", |i| self.text(i));
            left = COMPARISONS.contains(&operator).then_some((operand, operator));
            begin = separator.end;
        }
    }

    /// Both sides of a comparison are measured, unless one is a constant: then nothing is looked into.
    fn compared(&mut self, left: Range<usize>, operator: &str, right: &Range<usize>) {
        let is_list = |side: &Range<usize>| self.tokens[side.start].kind == Kind::Open;
        let is_shallow = left.is_empty()
            || right.is_empty()
            || self.is_plain(&left)
            || (self.is_plain(right) && (operator != "in" || is_list(right)));
        if !is_shallow {
            self.wrap(left, "measured");
            self.wrap(right.clone(), "measured");
        }
    }

    /// The words and comparisons between the operands of an expression; `not in` is one.
    fn separators(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut separators: Vec<Range<usize>> = Vec::new();
        for i in self.items(range.clone()).filter(|i| self.separates(*i, range.start)) {
            match separators.last_mut() {
                Some(before) if before.end == i && self.text(before.start) == "not" => before.end = i + 1,
                _ => separators.push(i..i + 1),
            }
        }
        separators
    }

    /// True for a word such as `and`, and for a comparison; those of a test (`is not`, `is in`) belong to it.
    fn separates(&self, i: usize, first: usize) -> bool {
        let text = self.text(i);
        if COMPARISONS.contains(&text) && self.tokens[i].kind == Kind::Operator {
            return true;
        }
        let before = |back: usize| if i >= first + back { self.text(i - back) } else { "" };
        let of_test = before(1) == "is" || (before(1) == "not" && before(2) == "is");
        let is_attribute = matches!(before(1), "." | "|");
        self.tokens[i].kind == Kind::Word && SEPARATORS.contains(&text) && !of_test && !is_attribute
    }

    /// True for a constant, and for a list of constants.
    fn is_plain(&self, range: &Range<usize>) -> bool {
        self.tokens[range.clone()].iter().all(|token| match token.kind {
            Kind::Word => CONSTANTS.contains(&token.of(self.tag)),
            Kind::Operator => matches!(token.of(self.tag), "," | "-"),
            _ => true,
        })
    }

    /// `a + b` becomes `(a)|plus(b)`.
    fn sum(&mut self, range: Range<usize>) {
        let signs: Vec<usize> = self.items(range.clone()).filter(|i| self.is_binary(*i, range.start)).collect();
        let mut begin = range.start;
        let mut is_filter = false;
        for i in signs.iter().copied().chain([range.end]) {
            self.joined(begin..i);
            if begin > range.start && begin < i && self.text(begin - 1) == "+" {
                if !is_filter {
                    self.insert(self.tokens[range.start].begin, "(");
                    self.insert(self.tokens[begin - 2].end, ")");
                }
                self.replace(begin - 1, "|plus(");
                self.insert(self.tokens[i - 1].end, ")");
                is_filter = true;
            } else {
                is_filter = false;
            }
            begin = i + 1;
        }
    }

    /// True for `+` and `-` between two values.
    fn is_binary(&self, i: usize, first: usize) -> bool {
        let is_value = |token: &Token| matches!(token.kind, Kind::Word | Kind::Number | Kind::Text | Kind::Close);
        matches!(self.text(i), "+" | "-") && i > first && is_value(&self.tokens[i - 1]) && i + 1 < self.tokens.len()
    }

    /// `a ~ b` becomes `(a)|text ~ (b)|text`.
    fn joined(&mut self, range: Range<usize>) {
        let parts = self.split(range, |text| text == "~");
        for part in &parts {
            self.product(part.clone());
            let is_text = part.len() == 1 && self.tokens[part.start].kind == Kind::Text;
            if parts.len() > 1 && !is_text && !part.is_empty() {
                self.wrap(part.clone(), "text");
            }
        }
    }

    /// `a * b` becomes `(a)|times(b)`, and `a % b` becomes `(a)|remainder(b)`.
    fn product(&mut self, range: Range<usize>) {
        let is_factor = |i: &usize| matches!(self.text(*i), "*" | "/" | "//" | "%") && *i > range.start;
        let operators: Vec<usize> = self.items(range.clone()).filter(is_factor).collect();
        for (n, i) in operators.iter().copied().enumerate() {
            let filter = match self.text(i) {
                "*" => "|times(",
                "%" => "|remainder(",
                _ => continue,
            };
            let end = operators.get(n + 1).copied().unwrap_or(range.end);
            if i + 1 < end {
                self.insert(self.tokens[range.start].begin, "(");
                self.insert(self.tokens[i - 1].end, ")");
                self.replace(i, filter);
                self.insert(self.tokens[end - 1].end, ")");
            }
        }
    }

    /// What a bracket holds. Values that become keys are measured.
    fn bracket(&mut self, open: usize, first: usize) {
        let inside = open + 1..self.closing[open];
        self.expressions(inside.clone());
        match self.text(open) {
            "{" => {
                for entry in self.split(inside, |text| text == ",") {
                    let key = self.split(entry, |text| text == ":").swap_remove(0);
                    self.measure(key);
                }
            }
            "[" if open > first && self.ends_value(open - 1) => self.subscript(open, first),
            "(" if open > 0 && self.text(open - 1) == "changed" => self.measure_arguments(inside),
            _ => {}
        }
    }

    /// `a[b]` becomes `((a)|indexed)[(b)|measured]`, unless b is a name.
    fn subscript(&mut self, open: usize, first: usize) {
        let inside = open + 1..self.closing[open];
        if inside.len() == 1 && self.tokens[inside.start].kind == Kind::Text {
            return;
        }
        if self.items(inside.clone()).all(|i| self.text(i) != ":") {
            self.measure(inside);
        }
        self.insert(self.tokens[self.value_before(open, first)].begin, "((");
        self.insert(self.tokens[open - 1].end, ")|indexed)");
    }

    /// The first token of the value that goes on with the bracket `open`: names, attributes, calls, subscripts and filters.
    fn value_before(&self, open: usize, first: usize) -> usize {
        let mut begin = open;
        for i in self.items(first..open) {
            let is_part = matches!(self.text(i), "." | "|")
                || (i > first && matches!(self.text(i - 1), "." | "|"))
                || (self.tokens[i].kind == Kind::Open && i > begin && self.ends_value(i - 1));
            if !is_part {
                begin = i;
            }
        }
        begin
    }

    /// True if a bracket after the token goes on with a value.
    fn ends_value(&self, i: usize) -> bool {
        matches!(self.tokens[i].kind, Kind::Word | Kind::Text | Kind::Close) && !SEPARATORS.contains(&self.text(i))
    }

    /// The filter after the bar `i`: what it looks into is measured.
    fn filter(&mut self, i: usize, first: usize, end: usize) {
        if i + 1 >= end {
            return;
        }
        if self.text(i + 1) == "tojson" && GENERATORS.contains(&self.filter_before(i, first)) {
            self.insert(self.tokens[i].begin, "|generator");
        }
        if SHALLOW_FILTERS.contains(&self.text(i + 1)) {
            return;
        }
        self.insert(self.tokens[i].begin, "|measured");
        if i + 2 < end && self.text(i + 2) == "(" {
            self.measure_arguments(i + 3..self.closing[i + 2]);
        }
    }

    /// The name of the filter whose value goes into the bar `i`, or another word.
    fn filter_before(&self, i: usize, first: usize) -> &'a str {
        let last = self.items(first..i).last();
        let name = last.map(|last| if self.tokens[last].kind == Kind::Open { last.saturating_sub(1) } else { last });
        name.filter(|name| *name > first && self.text(name - 1) == "|").map_or("", |name| self.text(name))
    }

    fn measure_arguments(&mut self, range: Range<usize>) {
        for argument in self.split(range, |text| text == ",") {
            let value = self.split(argument, |text| text == "=").pop().unwrap_or(0..0);
            self.measure(value);
        }
    }

    fn measure(&mut self, range: Range<usize>) {
        let is_spread = !range.is_empty() && matches!(self.text(range.start), "*" | "**");
        if !is_spread && !self.is_plain(&range) {
            self.wrap(range, "measured");
        }
    }

    fn wrap(&mut self, range: Range<usize>, filter: &str) {
        if range.is_empty() {
            return;
        }
        self.insert(self.tokens[range.start].begin, "(");
        self.insert(
            self.tokens[range.end - 1].end,
            match filter {
                "iterated" => ")|iterated",
                "text" => ")|text",
                _ => ")|measured",
            },
        );
    }

    fn insert(&mut self, at: usize, text: &'static str) {
        self.edits.push(Edit { at, removed: 0, text });
    }

    fn replace(&mut self, i: usize, text: &'static str) {
        let Token { begin, end, .. } = self.tokens[i];
        self.edits.push(Edit { at: begin, removed: end - begin, text });
    }
}
