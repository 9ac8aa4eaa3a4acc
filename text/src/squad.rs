//! Answer normalisation of the official SQuAD v1.1 evaluation script, with Unicode's own tables as Python has them.

/// Lower case; ASCII punctuation removed; the words a, an, the removed; words separated by one space.
pub fn normalize(answer: &str) -> String {
    let lower = answer.to_lowercase();
    let bare: String = lower.chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let kept = without_articles(&bare);
    kept.split(is_python_space).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Python's `re.sub(r"\b(a|an|the)\b", " ", text)`: a word is a run of letters and digits, whatever stands around it.
/// (Vowel signs of Indic scripts count as letters here and not in Python; that matters only right beside an English article.)
fn without_articles(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let inside = first.is_alphanumeric();
        let end = rest.find(|c: char| c.is_alphanumeric() != inside).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        kept.push_str(if matches!(run, "a" | "an" | "the") { " " } else { run });
        rest = after;
    }
    kept
}

/// What Python's `str.split()` splits at: Unicode white space and the four ASCII separators.
fn is_python_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}
