//! The stack on which templates are parsed and rendered. A thread keeps its stack, since mapping one takes longer than a render.

use std::cell::Cell;

use corosensei::on_stack;
use corosensei::stack::{DefaultStack, Stack};

use crate::guard::Fault;

/// Parsing recurses with what is nested in a template, rendering and dropping with what is nested in its values.
const STACK_BYTES: usize = 256 << 20;
/// Of a stack that waits, at most this much stays in memory. An ordinary render needs less.
const KEPT_BYTES: usize = 1 << 20;
/// A stack that grows beyond what is kept touches some of the next bytes: Rust probes the pages of large frames in order.
const PROBED_BYTES: usize = 256 << 10;
const SMALLEST_PAGE_BYTES: usize = 4096;

thread_local! {
    static KEPT: Cell<Option<DefaultStack>> = const { Cell::new(None) };
}

/// Runs `work` on this thread's large stack. If it panics, that stack is freed, and the panic goes on.
pub fn on_large_stack<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    let mut stack = match KEPT.take() {
        Some(stack) => stack,
        None => DefaultStack::new(STACK_BYTES)
            .map_err(|error| Fault::new(format!("no stack of {STACK_BYTES} bytes can be mapped: {error}")))?,
    };
    let result = on_stack(&mut stack, work);
    release_pages(&stack);
    KEPT.set(Some(stack));
    result
}

/// Gives back the pages that only a deep recursion touches. Asking whether there are any costs less than giving none back,
/// which interrupts the other processors.
fn release_pages(stack: &DefaultStack) {
    let limit = stack.limit().get();
    let kept = stack.base().get() - KEPT_BYTES;
    if has_pages(kept - PROBED_BYTES) {
        // Nothing runs on the stack, so no value lies in these pages. If the call fails, they stay until the thread ends.
        unsafe { libc::madvise(limit as *mut libc::c_void, kept - limit, libc::MADV_DONTNEED) };
    }
}

/// Whether any of the pages from an address on is in memory.
fn has_pages(begin: usize) -> bool {
    let mut pages = [0u8; PROBED_BYTES / SMALLEST_PAGE_BYTES];
    let status = unsafe { libc::mincore(begin as *mut libc::c_void, PROBED_BYTES, pages.as_mut_ptr()) };
    status != 0 || pages.iter().any(|page| page & 1 != 0)
}
