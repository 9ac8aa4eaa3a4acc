//! What a Parquet file says of itself, looked over before its reader believes it: the reader allocates lists as long as
//! the footer claims, and recurses as deep as its schema is nested, and neither can be caught. Thrift's compact protocol.

use crate::guard::Fault;

const DEEPEST: usize = 64;
const MAGIC: &[u8] = b"PAR1";

/// A fault where lists are longer than the footer, or structures or the schema nested deeper than any real one. What
/// else may be wrong the reader says.
pub fn require_sound(file: &[u8]) -> Result<(), Fault> {
    let Some(footer) = footer_of(file) else { return Ok(()) };
    match (Walk { bytes: footer, at: 0 }).file() {
        Some(()) => Ok(()),
        None => Err(Fault::new("not a Parquet file, or a damaged one: its footer is invalid".to_owned())),
    }
}

fn footer_of(file: &[u8]) -> Option<&[u8]> {
    let rest = file.strip_suffix(MAGIC)?;
    let (rest, length) = rest.split_last_chunk::<4>()?;
    rest.get(rest.len().checked_sub(u32::from_le_bytes(*length) as usize)?..)
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// None: it makes no sense.
impl Walk<'_> {
    fn file(&mut self) -> Option<()> {
        self.structure(0, |walk, id, kind| {
            const SCHEMA: i64 = 2;
            if id == SCHEMA && kind == 9 {
                walk.schema()
            } else {
                walk.value(kind, 1).map(|_| ())
            }
        })
    }

    /// Its elements lie one behind the other, parents first, each with the number of its children.
    fn schema(&mut self) -> Option<()> {
        const CHILDREN: i64 = 5;
        let (elements, kind) = self.list()?;
        let mut to_come: Vec<usize> = Vec::new(); // at each level
        for _ in 0..elements {
            let mut children = 0;
            if kind != 12 {
                return None;
            }
            self.structure(2, |walk, id, kind| {
                let value = walk.value(kind, 3)?;
                if id == CHILDREN {
                    children = value?;
                }
                Some(())
            })?;
            while to_come.last() == Some(&0) {
                to_come.pop();
            }
            if let Some(left) = to_come.last_mut() {
                *left -= 1;
            }
            let children = usize::try_from(children).ok().filter(|count| *count <= elements)?;
            to_come.push(children);
            if to_come.len() > DEEPEST {
                return None;
            }
        }
        Some(())
    }

    fn structure(&mut self, depth: usize, mut field: impl FnMut(&mut Self, i64, u8) -> Option<()>) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        let mut id = 0;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Some(());
            }
            let delta = i64::from(header >> 4);
            id = if delta == 0 { self.integer()? } else { id + delta };
            field(self, id, header & 15)?;
        }
    }

    /// Passes over it; its number where it is one.
    fn value(&mut self, kind: u8, depth: usize) -> Option<Option<i64>> {
        match kind {
            1 | 2 => {} // a field's header says which
            3 => self.pass(1)?,
            4..=6 => return self.integer().map(Some),
            7 => self.pass(8)?,
            8 => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.pass(length)?;
            }
            9 | 10 => {
                let (elements, kind) = self.list()?;
                for _ in 0..elements {
                    self.element(kind, depth)?;
                }
            }
            11 => {
                let entries = self.bounded()?;
                let kinds = if entries == 0 { 0 } else { self.byte()? };
                for _ in 0..entries {
                    self.element(kinds >> 4, depth)?;
                    self.element(kinds & 15, depth)?;
                }
            }
            12 => self.structure(depth + 1, |walk, _, kind| walk.value(kind, depth + 1).map(|_| ()))?,
            _ => return None,
        }
        Some(None)
    }

    fn element(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        match kind {
            1 | 2 => self.pass(1),
            _ => self.value(kind, depth + 1).map(|_| ()),
        }
    }

    /// Of at most as many elements as there are bytes left: each takes one at least.
    fn list(&mut self) -> Option<(usize, u8)> {
        let header = self.byte()?;
        let short = usize::from(header >> 4);
        let elements = if short == 15 { self.bounded()? } else { short };
        (elements <= self.bytes.len() - self.at).then_some((elements, header & 15))
    }

    fn bounded(&mut self) -> Option<usize> {
        usize::try_from(self.varint()?).ok().filter(|count| *count <= self.bytes.len() - self.at)
    }

    fn integer(&mut self) -> Option<i64> {
        let coded = self.varint()?;
        Some((coded >> 1) as i64 ^ -((coded & 1) as i64))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(value);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn pass(&mut self, bytes: usize) -> Option<()> {
        self.at = self.at.checked_add(bytes).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }
}
