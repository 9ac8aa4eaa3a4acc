//! Regular expressions as Python's `re` reads them, lookarounds included, matched by Oniguruma.

use onig::{MatchParam, Regex, RegexOptions, SearchOptions, Syntax};

use crate::guard::Fault;

pub struct Pattern(Regex);

impl Pattern {
    pub fn compile(source: &str) -> Result<Self, Fault> {
        Regex::with_options(source, RegexOptions::REGEX_OPTION_NONE, Syntax::python())
            .map(Pattern)
            .map_err(|error| Fault::new(error.description().to_string()))
    }

    /// Python's `re.fullmatch`. The number of steps back is bounded.
    pub fn matches_whole(&self, text: &str) -> Result<bool, Fault> {
        self.0
            .match_with_param(text, 0, SearchOptions::SEARCH_OPTION_WHOLE_STRING, None, MatchParam::default())
            .map(|end| end == Some(text.len()))
            .map_err(|error| Fault::new(error.description().to_string()))
    }
}
