/* Hugging Face tokenizers (tokenizer.json), chat templates and Parquet files behind a C interface;
 * implemented in Rust by src/.
 *
 * Every function returns SHERD_TEXT_OK or a code below. On failure, and where `error` is
 * not NULL, *error is set to a message (NUL-terminated UTF-8, one line, no control characters) to
 * be freed with sherd_text_free_string(); outputs are then untouched. A panic inside never leaves a
 * function: it comes back as an error too. A tokenizer may be used by several threads at once.
 * Texts are UTF-8, given by pointer and length, and may hold NUL. */
#ifndef SHERD_TEXT_H
#define SHERD_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  SHERD_TEXT_OK = 0,
  SHERD_TEXT_BAD_DATA = 1, /* a file that cannot be right, or a text that is not UTF-8 */
  SHERD_TEXT_RAISED = 2,   /* a chat template called raise_exception() */
};

typedef struct sherd_tokenizer sherd_tokenizer;

typedef struct {
  const char* bytes;
  size_t length_bytes;
} sherd_text_slice;

/* One encoded text: `count` ids, and the bytes [begin, end) of the text that each came from. A
 * token that the tokenizer added (such as <s>) has begin = end = 0. Freed with
 * sherd_text_free_encoding(). */
typedef struct {
  size_t count;
  uint32_t* ids;
  uint64_t* begin_bytes;
  uint64_t* end_bytes;
} sherd_text_encoding;

/* Reads the bytes of a tokenizer.json. Refuses, naming the file by `name` and the place, what the
 * format allows but would later abort, hang, answer differently each time or give wrong ids: see
 * src/checks.rs. Truncation and padding told by the file are switched off. */
int32_t sherd_text_open(const char* name, sherd_text_slice file, sherd_tokenizer** tokenizer,
                        char** error);
void sherd_text_close(sherd_tokenizer* tokenizer);

/* The largest id + 1, added tokens included: how many rows an embedding needs. */
uint64_t sherd_text_vocabulary_size(const sherd_tokenizer* tokenizer);

/* The special tokens by id, a JSON array of texts. Freed with sherd_text_free_string(). */
int32_t sherd_text_special_tokens(const sherd_tokenizer* tokenizer, char** tokens,
                                  size_t* length_bytes, char** error);

/* The ids of added tokens that are found before anything else is done to a text, a JSON array:
 * where one begins, a text may be encoded in two parts. Freed with sherd_text_free_string(). */
int32_t sherd_text_boundary_ids(const sherd_tokenizer* tokenizer, char** ids, size_t* length_bytes,
                                char** error);

/* Encodes a text into *encoding; several threads may do so at once.
 * add_special: let the tokenizer add the tokens of its template, such as <s> in front. */
int32_t sherd_text_encode(const sherd_tokenizer* tokenizer, sherd_text_slice text, bool add_special,
                          sherd_text_encoding* encoding, char** error);
/* The same without adding tokens; a token's bytes include the blanks that the tokenizer's
 * trim_offsets would take off. */
int32_t sherd_text_encode_whole(const sherd_tokenizer* tokenizer, sherd_text_slice text,
                                sherd_text_encoding* encoding, char** error);
void sherd_text_free_encoding(sherd_text_encoding* encoding);

/* The text of `count` ids, to be freed with sherd_text_free_string(); NUL-terminated after
 * *length_bytes. Ids without a token give nothing; bytes that are no UTF-8 give U+FFFD.
 * skip_special: leave special tokens out. */
int32_t sherd_text_decode(const sherd_tokenizer* tokenizer, const uint32_t* ids, size_t count,
                          bool skip_special, char** text, size_t* length_bytes, char** error);

/* *id becomes the id of a token, or -1 if there is none. */
int32_t sherd_text_token_to_id(const sherd_tokenizer* tokenizer, sherd_text_slice token,
                               int64_t* id, char** error);

/* An answer as the official SQuAD v1.1 evaluation normalises it: lower case, without ASCII
 * punctuation, without the words a, an, the, words separated by one space. Bytes that are no UTF-8
 * count as U+FFFD. Freed with sherd_text_free_string(). */
int32_t sherd_text_squad_normalize(sherd_text_slice answer, char** normalized, size_t* length_bytes,
                                   char** error);

typedef struct sherd_chat_template sherd_chat_template;
typedef struct sherd_conversation sherd_conversation;

/* A rendered conversation, and the bytes [begin, end) of its `count` generation blocks. Freed with
 * sherd_text_free_chat(). */
typedef struct {
  char* text;
  size_t length_bytes;
  size_t count;
  uint64_t* begin_bytes;
  uint64_t* end_bytes;
} sherd_text_rendered_chat;

/* Parses a model's chat template (Jinja). Size and stack are bounded. */
int32_t sherd_text_chat_open(sherd_text_slice source, sherd_chat_template** chat_template,
                             char** error);
void sherd_text_chat_close(sherd_chat_template* chat_template);

/* The text of a template that ships, such as chatml, to be freed with sherd_text_free_string(). The
 * fault for another name lists all names. */
int32_t sherd_text_chat_named(sherd_text_slice name, char** source, size_t* length_bytes,
                              char** error);

/* A conversation as templates read it, prepared as transformers does. `messages`: a JSON list.
 * `tools`: a JSON list or null. `variables`: a JSON object with what else a template may name
 * (bos_token, add_generation_prompt …). */
int32_t sherd_text_conversation_open(sherd_text_slice messages, sherd_text_slice tools,
                                     sherd_text_slice variables, sherd_conversation** conversation,
                                     char** error);
void sherd_text_conversation_close(sherd_conversation* conversation);

/* The first `count` messages as the template writes them. `add_generation_prompt`: 0, 1, or -1 for
 * what the variables say. `now`: the local time for strftime_now(), such as 2026-03-09T07:05:03;
 * empty for the present. Steps, stack and output are bounded. Several threads may render at once.
 */
int32_t sherd_text_chat_render(const sherd_chat_template* chat_template,
                               const sherd_conversation* conversation, size_t count,
                               int32_t add_generation_prompt, sherd_text_slice now,
                               sherd_text_rendered_chat* rendered, char** error);
void sherd_text_free_chat(sherd_text_rendered_chat* rendered);

typedef struct sherd_parquet sherd_parquet;

/* Opens the bytes of a Parquet file, which must live until it is closed. `wanted`: a JSON array of
 * names of columns; what of them is there is read, nothing else. */
int32_t sherd_text_parquet_open(sherd_text_slice file, sherd_text_slice wanted,
                                sherd_parquet** rows, char** error);
void sherd_text_parquet_close(sherd_parquet* rows);

/* The names of all columns of the file, a JSON array. Freed with sherd_text_free_string(). */
int32_t sherd_text_parquet_columns(const sherd_parquet* rows, char** names, size_t* length_bytes,
                                   char** error);

/* The next row, a JSON object of its wanted columns, to be freed with sherd_text_free_string();
 * NULL at the end. A fault names row (from 1) and column; there is no row after it. */
int32_t sherd_text_parquet_next(sherd_parquet* rows, char** row, size_t* length_bytes,
                                char** error);

typedef struct sherd_stream sherd_stream;

/* The bytes of a data file, decompressed as they are read where its first bytes are those of gzip
 * (several members, zeros after the last one) or Zstandard. Memory: at most 128 MiB, the largest
 * Zstandard window. The first takes the descriptor over, also where it fails; the second reads
 * bytes that live until the stream is closed. */
int32_t sherd_text_stream_open_descriptor(int32_t descriptor, sherd_stream** stream, char** error);
int32_t sherd_text_stream_open_bytes(sherd_text_slice bytes, sherd_stream** stream, char** error);
void sherd_text_stream_close(sherd_stream* stream);

/* "gzip", "zstd", or empty; never freed. */
void sherd_text_stream_compression(const sherd_stream* stream, sherd_text_slice* name);

/* Writes the next bytes into `buffer`: as many as it has room for, fewer at the end alone. */
int32_t sherd_text_stream_read(sherd_stream* stream, char* buffer, size_t capacity, size_t* read,
                               char** error);

typedef struct sherd_table sherd_table;

/* A row of a table: a JSON object of texts, or why the row is bad; to be freed with
 * sherd_text_free_string(). NULL: there is none left. */
typedef struct {
  char* text;
  size_t length_bytes;
  bool is_fault;
  uint64_t line; /* where it begins, from 1; lines end with a line feed */
  uint64_t begin_byte;
  uint64_t end_byte;
} sherd_text_table_row;

/* Reads a stream as CSV (RFC 4180) with this delimiter. Takes the stream over, also where it fails.
 * The first row has the names of the columns. */
int32_t sherd_text_table_open(sherd_stream* stream, char delimiter, sherd_table** table,
                              char** error);
void sherd_text_table_close(sherd_table* table);
int32_t sherd_text_table_columns(const sherd_table* table, char** names, size_t* length_bytes,
                                 char** error);
int32_t sherd_text_table_next(sherd_table* table, sherd_text_table_row* row, char** error);

typedef struct sherd_pattern sherd_pattern;

/* Compiles a regular expression in Python's syntax, lookarounds included. */
int32_t sherd_text_pattern_open(sherd_text_slice source, sherd_pattern** pattern, char** error);
void sherd_text_pattern_close(sherd_pattern* pattern);
/* Whether the pattern matches the whole text, as Python's re.fullmatch. Steps back are bounded. */
int32_t sherd_text_pattern_matches_whole(const sherd_pattern* pattern, sherd_text_slice text,
                                         bool* matches, char** error);

void sherd_text_free_string(char* string);

#ifdef __cplusplus
}
#endif
#endif
