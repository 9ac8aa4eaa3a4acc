//! What stands between Rust and its C callers: faults with a code, messages fit for a terminal, and no panic that escapes.

use std::ffi::c_char;
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::sync::Once;

/// Why a call failed: data that cannot be right.
pub struct Fault {
    pub code: i32,
    pub message: String,
}

impl Fault {
    pub fn new(message: String) -> Self {
        Fault { code: BAD_DATA, message }
    }
}

/// SHERD_TEXT_BAD_DATA of sherd_text.h.
const BAD_DATA: i32 = 1;
/// SHERD_TEXT_RAISED of sherd_text.h.
pub const RAISED: i32 = 2;

const MAX_MESSAGE_CHARS: usize = 600;

/// Runs `body`; a fault or a panic becomes a code, and a message in `*error` if the caller wants it.
pub fn guarded(error: *mut *mut c_char, body: impl FnOnce() -> Result<(), Fault>) -> i32 {
    static SILENCE: Once = Once::new();
    SILENCE.call_once(|| set_hook(Box::new(|_| {})));
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(fault)) => fault,
        // What makes the crates panic is a tokenizer file that they did not check.
        Err(panic) => Fault::new(format!("it failed: {}", panic_text(&*panic))),
    };
    if !error.is_null() {
        unsafe { *error = to_c_string(&printable(&fault.message)) };
    }
    fault.code
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return (*text).to_string();
    }
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "unknown panic".to_string())
}

/// A message may quote a stranger's file: no control characters, and not pages of it.
fn printable(message: &str) -> String {
    let mut text: String =
        message.chars().take(MAX_MESSAGE_CHARS).map(|c| if c.is_control() { '\u{FFFD}' } else { c }).collect();
    if message.chars().nth(MAX_MESSAGE_CHARS).is_some() {
        text.push('…');
    }
    text
}

/// A copy for C, NUL-terminated. The text may hold NUL itself, so its length lies in front, where free_c_string() finds it.
pub fn to_c_string(text: &str) -> *mut c_char {
    let mut buffer = Vec::with_capacity(HEADER_BYTES + text.len() + 1);
    buffer.extend_from_slice(&text.len().to_ne_bytes());
    buffer.extend_from_slice(text.as_bytes());
    buffer.push(0);
    let start = Box::into_raw(buffer.into_boxed_slice()) as *mut u8;
    unsafe { start.add(HEADER_BYTES) as *mut c_char }
}

const HEADER_BYTES: usize = std::mem::size_of::<usize>();

/// Frees what to_c_string() made.
pub unsafe fn free_c_string(string: *mut c_char) {
    if string.is_null() {
        return;
    }
    let start = (string as *mut u8).sub(HEADER_BYTES);
    let length_bytes = (start as *const usize).read_unaligned();
    drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, HEADER_BYTES + length_bytes + 1)));
}
