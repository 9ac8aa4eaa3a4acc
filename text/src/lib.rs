//! The C interface of sherd_text.h: pointers in, pointers out, and nothing else.

mod chat;
mod checks;
mod csv;
mod guard;
mod parquet;
mod parquet_footer;
mod pattern;
mod squad;
mod stream;
mod tokenizer;

use std::ffi::{c_char, CStr};
use std::slice;

use chat::{Conversation, Rendered, Template};
use csv::Table;
use guard::{free_c_string, guarded, to_c_string, Fault};
use parquet::Rows;
use pattern::Pattern;
use stream::Stream;
use tokenizer::Tokenizer;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slice {
    bytes: *const u8,
    length_bytes: usize,
}

impl Slice {
    /// Lives as long as the caller's memory, that is, during the call.
    fn bytes<'a>(self) -> &'a [u8] {
        if self.length_bytes == 0 {
            return &[];
        }
        unsafe { slice::from_raw_parts(self.bytes, self.length_bytes) }
    }

    fn text<'a>(self) -> Result<&'a str, Fault> {
        let not_utf8 =
            |error: std::str::Utf8Error| Fault::new(format!("the text is not UTF-8 at byte {}", error.valid_up_to()));
        std::str::from_utf8(self.bytes()).map_err(not_utf8)
    }
}

#[repr(C)]
pub struct Encoding {
    count: usize,
    ids: *mut u32,
    begin_bytes: *mut u64,
    end_bytes: *mut u64,
}

impl Encoding {
    fn new(encoding: &tokenizers::Encoding) -> Self {
        let offsets = encoding.get_offsets();
        Encoding {
            count: offsets.len(),
            ids: to_c_array(encoding.get_ids().to_vec()),
            begin_bytes: to_c_array(offsets.iter().map(|(begin, _)| *begin as u64).collect()),
            end_bytes: to_c_array(offsets.iter().map(|(_, end)| *end as u64).collect()),
        }
    }
}

#[repr(C)]
pub struct RenderedChat {
    text: *mut c_char,
    length_bytes: usize,
    count: usize,
    begin_bytes: *mut u64,
    end_bytes: *mut u64,
}

impl RenderedChat {
    fn new(rendered: Rendered) -> Self {
        RenderedChat {
            text: to_c_string(&rendered.text),
            length_bytes: rendered.text.len(),
            count: rendered.spans.len(),
            begin_bytes: to_c_array(rendered.spans.iter().map(|(begin, _)| *begin).collect()),
            end_bytes: to_c_array(rendered.spans.iter().map(|(_, end)| *end).collect()),
        }
    }
}

fn to_c_array<T>(values: Vec<T>) -> *mut T {
    Box::into_raw(values.into_boxed_slice()) as *mut T
}

unsafe fn free_c_array<T>(values: *mut T, count: usize) {
    drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(values, count)));
}

fn array<'a, T>(values: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    unsafe { slice::from_raw_parts(values, count) }
}

unsafe fn give_text(value: &str, text: *mut *mut c_char, length_bytes: *mut usize) {
    *text = to_c_string(value);
    *length_bytes = value.len();
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_open(
    name: *const c_char,
    file: Slice,
    tokenizer: *mut *mut Tokenizer,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        let name = CStr::from_ptr(name).to_string_lossy();
        *tokenizer = Box::into_raw(Box::new(Tokenizer::open(&name, file.bytes())?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_close(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_vocabulary_size(tokenizer: *const Tokenizer) -> u64 {
    (*tokenizer).vocabulary_size()
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_special_tokens(
    tokenizer: *const Tokenizer,
    tokens: *mut *mut c_char,
    length_bytes: *mut usize,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        give_text(&serde_json::Value::from((*tokenizer).special_tokens()).to_string(), tokens, length_bytes);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_boundary_ids(
    tokenizer: *const Tokenizer,
    ids: *mut *mut c_char,
    length_bytes: *mut usize,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        give_text(&serde_json::Value::from((*tokenizer).boundary_ids()).to_string(), ids, length_bytes);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_encode(
    tokenizer: *const Tokenizer,
    text: Slice,
    add_special: bool,
    encoding: *mut Encoding,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        encoding.write(Encoding::new(&(*tokenizer).encode(text.text()?, add_special)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_encode_whole(
    tokenizer: *const Tokenizer,
    text: Slice,
    encoding: *mut Encoding,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        encoding.write(Encoding::new(&(*tokenizer).encode_whole(text.text()?)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_free_encoding(encoding: *mut Encoding) {
    let encoding = encoding.read();
    free_c_array(encoding.ids, encoding.count);
    free_c_array(encoding.begin_bytes, encoding.count);
    free_c_array(encoding.end_bytes, encoding.count);
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_decode(
    tokenizer: *const Tokenizer,
    ids: *const u32,
    count: usize,
    skip_special: bool,
    text: *mut *mut c_char,
    length_bytes: *mut usize,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        give_text(&(*tokenizer).decode(array(ids, count), skip_special)?, text, length_bytes);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_token_to_id(
    tokenizer: *const Tokenizer,
    token: Slice,
    id: *mut i64,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        *id = (*tokenizer).token_to_id(token.text()?).map_or(-1, i64::from);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_squad_normalize(
    answer: Slice,
    normalized: *mut *mut c_char,
    length_bytes: *mut usize,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        give_text(&squad::normalize(&String::from_utf8_lossy(answer.bytes())), normalized, length_bytes);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_chat_open(
    source: Slice,
    template: *mut *mut Template,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        *template = Box::into_raw(Box::new(Template::open(source.text()?)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_chat_named(
    name: Slice,
    source: *mut *mut c_char,
    length_bytes: *mut usize,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        give_text(chat::source_of(name.text()?)?, source, length_bytes);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_chat_close(template: *mut Template) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_conversation_open(
    messages: Slice,
    tools: Slice,
    variables: Slice,
    conversation: *mut *mut Conversation,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        let opened = Conversation::open(messages.text()?, tools.text()?, variables.text()?)?;
        *conversation = Box::into_raw(Box::new(opened));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_conversation_close(conversation: *mut Conversation) {
    if !conversation.is_null() {
        drop(Box::from_raw(conversation));
    }
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_chat_render(
    template: *const Template,
    conversation: *const Conversation,
    count: usize,
    add_generation_prompt: i32,
    now: Slice,
    rendered: *mut RenderedChat,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        let add = (add_generation_prompt >= 0).then_some(add_generation_prompt != 0);
        rendered.write(RenderedChat::new((*template).render(&*conversation, count, add, now.text()?)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_free_chat(rendered: *mut RenderedChat) {
    let rendered = rendered.read();
    free_c_string(rendered.text);
    free_c_array(rendered.begin_bytes, rendered.count);
    free_c_array(rendered.end_bytes, rendered.count);
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_parquet_open(
    file: Slice,
    wanted: Slice,
    rows: *mut *mut Rows,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        let wanted: Vec<String> =
            serde_json::from_str(wanted.text()?).map_err(|fault| Fault::new(format!("the wanted columns: {fault}")))?;
        *rows = Box::into_raw(Box::new(Rows::open(file.bytes(), &wanted)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_parquet_close(rows: *mut Rows) {
    if !rows.is_null() {
        drop(Box::from_raw(rows));
    }
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_parquet_columns(
    rows: *const Rows,
    names: *mut *mut c_char,
    length_bytes: *mut usize,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        give_text(&serde_json::Value::from((*rows).names().to_vec()).to_string(), names, length_bytes);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_parquet_next(
    rows: *mut Rows,
    row: *mut *mut c_char,
    length_bytes: *mut usize,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        match (*rows).next()? {
            Some(text) => give_text(&text, row, length_bytes),
            None => *row = std::ptr::null_mut(),
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_stream_open_descriptor(
    descriptor: i32,
    stream: *mut *mut Stream,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        *stream = Box::into_raw(Box::new(Stream::of_descriptor(descriptor)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_stream_open_bytes(
    bytes: Slice,
    stream: *mut *mut Stream,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        *stream = Box::into_raw(Box::new(Stream::of_bytes(bytes.bytes())?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_stream_close(stream: *mut Stream) {
    if !stream.is_null() {
        drop(Box::from_raw(stream));
    }
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_stream_compression(stream: *const Stream, name: *mut Slice) {
    let text = (*stream).compression();
    *name = Slice { bytes: text.as_ptr(), length_bytes: text.len() };
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_stream_read(
    stream: *mut Stream,
    buffer: *mut u8,
    capacity: usize,
    read: *mut usize,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        *read = (*stream).read(slice::from_raw_parts_mut(buffer, capacity))?;
        Ok(())
    })
}

#[repr(C)]
pub struct TableRow {
    text: *mut c_char,
    length_bytes: usize,
    is_fault: bool,
    line: u64,
    begin_byte: u64,
    end_byte: u64,
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_table_open(
    stream: *mut Stream,
    delimiter: c_char,
    table: *mut *mut Table,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        *table = Box::into_raw(Box::new(Table::open(*Box::from_raw(stream), delimiter as u8)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_table_close(table: *mut Table) {
    if !table.is_null() {
        drop(Box::from_raw(table));
    }
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_table_columns(
    table: *const Table,
    names: *mut *mut c_char,
    length_bytes: *mut usize,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        give_text(&serde_json::Value::from((*table).columns().to_vec()).to_string(), names, length_bytes);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_table_next(table: *mut Table, row: *mut TableRow, error: *mut *mut c_char) -> i32 {
    guarded(error, || {
        (*row).text = std::ptr::null_mut();
        if let Some(next) = (*table).next()? {
            give_text(&next.text, &mut (*row).text, &mut (*row).length_bytes);
            (*row).is_fault = next.is_fault;
            (*row).line = next.line;
            (*row).begin_byte = next.begin_byte;
            (*row).end_byte = next.end_byte;
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_pattern_open(
    source: Slice,
    pattern: *mut *mut Pattern,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        *pattern = Box::into_raw(Box::new(Pattern::compile(source.text()?)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_pattern_close(pattern: *mut Pattern) {
    if !pattern.is_null() {
        drop(Box::from_raw(pattern));
    }
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_pattern_matches_whole(
    pattern: *const Pattern,
    text: Slice,
    matches: *mut bool,
    error: *mut *mut c_char,
) -> i32 {
    guarded(error, || {
        *matches = (*pattern).matches_whole(text.text()?)?;
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sherd_text_free_string(string: *mut c_char) {
    free_c_string(string);
}
