//! A tokenizer that was checked when it was opened.

use tokenizers::{Encoding, Model, OffsetType, PreTokenizer};

use crate::checks::Outline;
use crate::guard::Fault;

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocabulary_size: u64,
}

impl Tokenizer {
    /// `name` is that of the file, for messages.
    pub fn open(name: &str, bytes: &[u8]) -> Result<Self, Fault> {
        let bad = |why: String| Fault::new(format!("{name}: {why}"));
        let text = std::str::from_utf8(bytes).map_err(|e| bad(format!("is not UTF-8 at byte {}", e.valid_up_to())))?;
        if !text.trim_start().starts_with('{') {
            return Err(bad("should hold a JSON object".to_string()));
        }
        let outline: Outline = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        if let Some(fault) = outline.fault() {
            return Err(bad(fault));
        }
        let load = || tokenizers::Tokenizer::from_bytes(text);
        let mut inner = std::panic::catch_unwind(load)
            .map_err(|_| bad("it makes the tokenizers crate panic while reading".to_string()))?
            .map_err(|error| bad(error.to_string()))?;
        for (i, token) in outline.added_tokens.iter().enumerate() {
            let given = inner.token_to_id(&token.content).map(u64::from);
            if given != Some(token.id) {
                let (content, id) = (&token.content, token.id);
                let given = given.map_or("none".to_string(), |id| id.to_string());
                return Err(bad(format!(
                    "at /added_tokens/{i}: {content:?} should have id {id} and gets {given}: added tokens that are not in \
                     the vocabulary must continue its ids without a gap"
                )));
            }
        }
        // Truncation and padding are the caller's business; a file could pad each text to gigabytes.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| bad(error.to_string()))?;
        let vocabulary_size = inner.get_vocab(true).values().max().map_or(0, |id| u64::from(*id) + 1);
        Ok(Tokenizer { inner, vocabulary_size })
    }

    pub fn vocabulary_size(&self) -> u64 {
        self.vocabulary_size
    }

    pub fn encode(&self, text: &str, add_special: bool) -> Result<Encoding, Fault> {
        let encoded = self.inner.encode(text, add_special);
        encoded.map_err(|error| Fault::new(format!("a text cannot be encoded: {error}")))
    }

    /// Without the tokenizer's own special tokens, and without its post-processor, which takes blanks off a token's bytes.
    pub fn encode_whole(&self, text: &str) -> Result<Encoding, Fault> {
        let bad = |error: tokenizers::Error| Fault::new(format!("a text cannot be encoded: {error}"));
        let mut parts = self.inner.get_added_vocabulary().extract_and_normalize(self.inner.get_normalizer(), text);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut parts).map_err(bad)?;
        }
        parts.tokenize(|part| self.inner.get_model().tokenize(part.get())).map_err(bad)?;
        parts.into_encoding(None, 0, OffsetType::Byte).map_err(bad)
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Fault> {
        let decoded = self.inner.decode(ids, skip_special);
        decoded.map_err(|error| Fault::new(format!("{} ids cannot be decoded: {error}", ids.len())))
    }

    /// The contents of special tokens, by id.
    pub fn special_tokens(&self) -> Vec<String> {
        let mut tokens: Vec<_> = self.inner.get_added_tokens_decoder().into_iter().collect();
        tokens.retain(|(_, token)| token.special);
        tokens.sort_by_key(|(id, _)| *id);
        tokens.into_iter().map(|(_, token)| token.content).collect()
    }

    /// The ids of added tokens that are found in a text before anything else is done to it, and that take nothing of what
    /// stands before them: a text may be encoded in two parts where one begins.
    pub fn boundary_ids(&self) -> Vec<u32> {
        let tokens = self.inner.get_added_tokens_decoder().into_iter();
        tokens.filter(|(_, token)| !token.normalized && !token.lstrip && !token.single_word).map(|(id, _)| id).collect()
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }
}
