//! What a render has written so far, bounded, and what templates ask of the render they are in.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use chrono::NaiveDateTime;
use minijinja::value::Object;
use minijinja::{Error, ErrorKind, State};

use super::PROGRESS;

/// A long conversation has some 100 KB.
pub const MAX_OUTPUT_BYTES: usize = 1 << 20;

/// One render: shared by its output and the functions of its template.
#[derive(Debug)]
pub struct Progress {
    pub now: NaiveDateTime,
    written_bytes: AtomicUsize,
    spans: Mutex<Vec<(u64, u64)>>,
}

impl Object for Progress {}

impl Progress {
    pub fn new(now: NaiveDateTime) -> Arc<Self> {
        Arc::new(Progress { now, written_bytes: AtomicUsize::new(0), spans: Mutex::new(Vec::new()) })
    }

    /// That of the render in which a template calls a function.
    pub fn of(state: &State) -> Result<Arc<Progress>, Error> {
        let found = state.lookup(PROGRESS).and_then(|value| value.downcast_object::<Progress>());
        found.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the render has no progress"))
    }

    /// Notes a generation block, as transformers does: its text begins where the output has got to.
    pub fn add_span(&self, length_bytes: usize) {
        let begin = self.written_bytes.load(Ordering::Relaxed) as u64;
        self.spans.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((begin, begin + length_bytes as u64));
    }

    pub fn spans(&self) -> Vec<(u64, u64)> {
        self.spans.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// What went wrong: too much output has its own message.
    pub fn fault_or(&self, error: Error) -> Error {
        if self.written_bytes.load(Ordering::Relaxed) <= MAX_OUTPUT_BYTES {
            return error;
        }
        Error::new(ErrorKind::WriteFailure, format!("it writes more than {MAX_OUTPUT_BYTES} bytes"))
    }
}

/// The text of a render.
pub struct Output {
    progress: Arc<Progress>,
    text: Vec<u8>,
}

impl Output {
    pub fn new(progress: Arc<Progress>) -> Self {
        Output { progress, text: Vec::new() }
    }

    pub fn into_text(self) -> String {
        String::from_utf8(self.text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.progress.written_bytes.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        if written > MAX_OUTPUT_BYTES {
            return Err(io::Error::other("too much output"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
