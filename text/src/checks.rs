//! What a tokenizer.json may not hold. The tokenizers crate accepts all of this, and then runs out of memory, encodes
//! differently each time, or gives ids that a model was not trained with. Checked before the crate sees the file.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// Ids beyond this are a broken file: the largest vocabularies in use have about 1 M.
const MAX_ID: u64 = 1 << 24;
/// How many times longer than the text its normalised form may become: U+FDFA alone becomes 33 bytes.
const MAX_GROWTH: f64 = 256.0;
/// Objects in a component: those of today's files have a few dozen, and each costs time on every text.
const MAX_COMPONENTS: usize = 1024;
/// Tokens that a template may add to each text.
const MAX_TEMPLATE_TOKENS: usize = 256;

/// The parts of the file that are checked.
#[derive(serde::Deserialize)]
pub struct Outline {
    #[serde(default)]
    pub added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: Model,
}

#[derive(serde::Deserialize)]
pub struct AddedToken {
    pub id: u64,
    pub content: String,
}

#[derive(serde::Deserialize)]
struct Model {
    #[serde(default)]
    vocab: Vocabulary,
    unk_token: Option<String>,
    dropout: Option<f64>,
}

/// Token -> id; for a Unigram model, whose vocabulary is a list, the id is the place in the list.
#[derive(Default)]
struct Vocabulary(HashMap<String, u64>);

impl Outline {
    /// The first reason to refuse the file, with its place as a JSON pointer.
    pub fn fault(&self) -> Option<String> {
        self.vocabulary_fault()
            .or_else(|| self.added_token_fault())
            .or_else(|| self.model_fault())
            .or_else(|| self.parts().into_iter().find_map(|(place, part)| size_fault(place, part)))
            .or_else(|| growth_fault("/normalizer", &self.normalizer))
            .or_else(|| growth_fault("/pre_tokenizer", &self.pre_tokenizer))
            .or_else(|| growth_fault("/decoder", &self.decoder))
            .or_else(|| template_fault("/post_processor", &self.post_processor))
    }

    fn parts(&self) -> [(&'static str, &Value); 4] {
        [
            ("/normalizer", &self.normalizer),
            ("/pre_tokenizer", &self.pre_tokenizer),
            ("/post_processor", &self.post_processor),
            ("/decoder", &self.decoder),
        ]
    }

    fn vocabulary_fault(&self) -> Option<String> {
        if self.model.vocab.0.is_empty() {
            return Some("at /model/vocab: the vocabulary is empty".to_string());
        }
        None
    }

    fn added_token_fault(&self) -> Option<String> {
        let mut ids: HashMap<u64, &str> = self.model.vocab.0.iter().map(|(t, id)| (*id, t.as_str())).collect();
        for (i, token) in self.added_tokens.iter().enumerate() {
            let place = format!("at /added_tokens/{i}");
            if token.id >= MAX_ID {
                return Some(format!(
                    "{place}: {} has id {}; ids end at {}",
                    short(&token.content),
                    token.id,
                    MAX_ID - 1
                ));
            }
            if let Some(other) = ids.insert(token.id, &token.content).filter(|other| *other != token.content) {
                let (one, two) = (short(other), short(&token.content));
                return Some(format!("{place}: id {} belongs to both {one} and {two}", token.id));
            }
        }
        None
    }

    fn model_fault(&self) -> Option<String> {
        if let Some(dropout) = self.model.dropout.filter(|p| *p != 0.0) {
            return Some(format!(
                "at /model/dropout: {dropout}: the same text would be encoded differently each time; set it to null"
            ));
        }
        let unknown = self.model.unk_token.as_ref().filter(|token| !token.is_empty())?;
        let known = self.model.vocab.0.contains_key(unknown) || self.added_tokens.iter().any(|t| t.content == *unknown);
        (!known).then(|| format!("at /model/unk_token: {} is not in the vocabulary", short(unknown)))
    }
}

/// How a token is quoted in a message.
fn short(token: &str) -> String {
    let quoted: String = token.chars().take(40).collect();
    format!("{quoted:?}{}", if quoted.len() < token.len() { "…" } else { "" })
}

/// Every object of a component and of the components inside it, with its place.
fn each_object<'a>(place: &str, value: &'a Value, visit: &mut impl FnMut(&str, &'a serde_json::Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            visit(place, object);
            object.iter().for_each(|(key, inner)| each_object(&format!("{place}/{key}"), inner, visit));
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, inner)| each_object(&format!("{place}/{i}"), inner, visit));
        }
        _ => {}
    }
}

/// A text passes through every component, and the crate takes a while to read each.
fn size_fault(place: &str, component: &Value) -> Option<String> {
    let mut count = 0;
    each_object(place, component, &mut |_, _| count += 1);
    (count > MAX_COMPONENTS).then(|| format!("at {place}: holds {count} components; at most {MAX_COMPONENTS} are read"))
}

/// Components that make a text longer, multiplied: a short file can ask for more memory than there is.
fn growth_fault(place: &str, component: &Value) -> Option<String> {
    let mut growth = 1.0;
    let mut fault = None;
    each_object(place, component, &mut |at, object| {
        let length_of = |value: &Value| value.as_str().map_or(0, str::len) as f64;
        growth *= match object.get("type").and_then(Value::as_str) {
            Some("Replace") => {
                let pattern = object.get("pattern").and_then(|p| p.get("String")).map_or(1.0, length_of);
                (object.get("content").map_or(0.0, length_of) / pattern.max(1.0)).max(1.0)
            }
            Some("Prepend") => object.get("prepend").map_or(0.0, length_of).max(1.0),
            Some("ByteLevel") => 2.0,
            Some("Precompiled") => match charsmap_growth(object.get("precompiled_charsmap")) {
                Ok(longest) => longest,
                Err(why) => {
                    fault.get_or_insert(format!("at {at}/precompiled_charsmap: {why}"));
                    1.0
                }
            },
            _ => 1.0,
        };
        if growth > MAX_GROWTH && fault.is_none() {
            fault = Some(format!("at {at}: a text would become more than {MAX_GROWTH} times longer"));
        }
    });
    fault
}

/// Checks the header of a sentencepiece charsmap, whose length the crate trusts (a lying one asks for gigabytes and aborts);
/// returns the bytes of the longest replacement. Layout: u32 bytes of trie, trie, replacements separated by NUL.
fn charsmap_growth(encoded: Option<&Value>) -> Result<f64, String> {
    let text = encoded.and_then(Value::as_str).ok_or("is missing or not a string")?;
    let bytes = base64::decode(text).map_err(|error| format!("no base64: {error}"))?;
    let header = bytes.get(..4).ok_or("shorter than its header of 4 bytes")?;
    let trie_bytes = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let rest = &bytes[4..];
    if trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > rest.len() {
        return Err(format!("its header names {trie_bytes} bytes of trie, and {} bytes follow", rest.len()));
    }
    let longest = rest[trie_bytes..].split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    Ok(longest.max(1) as f64)
}

/// A template may repeat the text or add tokens without bound, and templates may follow each other.
fn template_fault(place: &str, post_processor: &Value) -> Option<String> {
    let mut added = 0;
    let mut fault = None;
    each_object(place, post_processor, &mut |at, object| {
        let Some(pieces) = object.get("single").and_then(Value::as_array) else { return };
        let texts = pieces.iter().filter(|piece| piece.get("Sequence").is_some()).count();
        for piece in pieces {
            let name = piece.pointer("/SpecialToken/id").and_then(Value::as_str);
            let ids = name.and_then(|name| object.get("special_tokens")?.get(name)?.get("ids")?.as_array());
            added += ids.map_or(0, Vec::len);
        }
        if texts != 1 {
            fault.get_or_insert(format!("at {at}/single: holds the text {texts} times instead of once"));
        } else if added > MAX_TEMPLATE_TOKENS {
            fault.get_or_insert(format!("at {at}/single: adds more than {MAX_TEMPLATE_TOKENS} tokens to each text"));
        }
    });
    fault
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VocabularyVisitor)
    }
}

struct VocabularyVisitor;

impl<'de> Visitor<'de> for VocabularyVisitor {
    type Value = Vocabulary;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("an object of token: id, or a list of [token, score]")
    }

    // Errors made here get line and column from serde_json.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
        let mut tokens = HashMap::new();
        let mut ids = HashSet::new();
        while let Some((token, id)) = map.next_entry::<String, u64>()? {
            if id >= MAX_ID {
                return Err(de::Error::custom(format!("{} has id {id}; ids end at {}", short(&token), MAX_ID - 1)));
            }
            if !ids.insert(id) {
                let other = tokens.iter().find(|(_, other)| **other == id).map_or("", |(t, _): (&String, _)| t);
                let (one, two) = (short(other), short(&token));
                return Err(de::Error::custom(format!("id {id} belongs to both {one} and {two}")));
            }
            if let Some(first) = tokens.insert(token.clone(), id) {
                return Err(de::Error::custom(format!("{} has two ids, {first} and {id}", short(&token))));
            }
        }
        Ok(Vocabulary(tokens))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocabulary, A::Error> {
        let mut tokens = HashMap::new();
        let mut id = 0;
        while let Some((token, score)) = list.next_element::<(String, f64)>()? {
            if !score.is_finite() {
                return Err(de::Error::custom(format!("the score of {} is not finite", short(&token))));
            }
            tokens.insert(token, id);
            id += 1;
        }
        Ok(Vocabulary(tokens))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Vocabulary, E> {
        Ok(Vocabulary::default())
    }
}
