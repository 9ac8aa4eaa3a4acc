//! Rows of a Parquet file as JSON objects.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use crate::guard::Fault;
use crate::parquet_footer;

/// Some columns of a file, row by row.
pub struct Rows {
    file: Bytes,
    names: Vec<String>,
    chosen: Vec<String>,
    iter: RowIter<'static>,
    rows_read: usize,
}

impl Rows {
    /// `wanted`: names of columns; those that are not there are left out.
    pub fn open(file: &'static [u8], wanted: &[String]) -> Result<Self, Fault> {
        let file = Bytes::from_static(file);
        let reader = open(&file)?;
        require_known_compression(&reader)?;
        let schema = reader.metadata().file_metadata().schema();
        let names: Vec<String> = schema.get_fields().iter().map(|field| field.name().to_owned()).collect();
        let chosen: Vec<String> = names.iter().filter(|name| wanted.contains(name)).cloned().collect();
        let iter = rows_of(&file, &chosen)?;
        Ok(Rows { file, names, chosen, iter, rows_read: 0 })
    }

    /// Of all columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// None at the end. After a fault there is nothing to go on with.
    pub fn next(&mut self) -> Result<Option<String>, Fault> {
        if self.chosen.is_empty() {
            return Ok(None);
        }
        let read = catch_unwind(AssertUnwindSafe(|| self.iter.next()));
        let row = match read {
            Ok(None) => return Ok(None),
            Ok(Some(Ok(row))) => row,
            Ok(Some(Err(error))) => return Err(self.fault_of_row(&error.to_string())),
            Err(_) => return Err(self.fault_of_row("its bytes are none of its type, or of one that is not read")),
        };
        self.rows_read += 1;
        Ok(Some(json_of_row(&row).to_string()))
    }

    fn fault_of_row(&self, why: &str) -> Fault {
        let why = why.split(". Bytes: ").next().unwrap_or(why); // a dump of them
        let column = self.chosen.iter().find(|name| !self.is_readable(name));
        let place = column.map_or(String::new(), |name| format!(", column \"{name}\""));
        Fault::new(format!("row {}{place}: {why}", self.rows_read + 1))
    }

    /// Whether one column alone can be read up to the row that could not.
    fn is_readable(&self, name: &str) -> bool {
        let read = || match rows_of(&self.file, &[name.to_owned()]) {
            Ok(iter) => iter.take(self.rows_read + 1).all(|row| row.is_ok()),
            Err(_) => false,
        };
        catch_unwind(AssertUnwindSafe(read)).unwrap_or(false)
    }
}

fn open(file: &Bytes) -> Result<SerializedFileReader<Bytes>, Fault> {
    parquet_footer::require_sound(file)?;
    SerializedFileReader::new(file.clone())
        .map_err(|error| Fault::new(format!("not a Parquet file, or a damaged one: {error}")))
}

/// Brotli and LZ4 are rare, and not built in.
fn require_known_compression(reader: &SerializedFileReader<Bytes>) -> Result<(), Fault> {
    use Compression::{GZIP, SNAPPY, UNCOMPRESSED, ZSTD};
    let chunks = reader.metadata().row_groups().iter().flat_map(|group| group.columns());
    let codecs = chunks.map(|chunk| chunk.compression());
    for codec in codecs {
        if !matches!(codec, UNCOMPRESSED | SNAPPY | GZIP(_) | ZSTD(_)) {
            let told = codec.to_string();
            let name = told.split('(').next().unwrap_or(&told); // without its level
            return Err(Fault::new(format!(
                "compressed with {name}, which is not supported: rewrite it with Zstandard, Snappy, gzip or without \
                 compression"
            )));
        }
    }
    Ok(())
}

fn rows_of(file: &Bytes, names: &[String]) -> Result<RowIter<'static>, Fault> {
    let reader = open(file)?;
    let schema = reader.metadata().file_metadata().schema();
    let fields = schema.get_fields().iter().filter(|field| names.iter().any(|name| name == field.name()));
    let chosen = Type::group_type_builder(schema.name()).with_fields(fields.map(Arc::clone).collect()).build();
    let fault = |error: parquet::errors::ParquetError| Fault::new(format!("its columns cannot be read: {error}"));
    RowIter::from_file_into(Box::new(reader)).project(Some(chosen.map_err(fault)?)).map_err(fault)
}

fn json_of_row(row: &Row) -> Value {
    Value::Object(row.get_column_iter().map(|(name, field)| (name.clone(), json_of(field))).collect::<Map<_, _>>())
}

fn json_of(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => Value::from(*value),
        Field::Byte(value) => Value::from(*value),
        Field::Short(value) => Value::from(*value),
        Field::Int(value) => Value::from(*value),
        Field::Long(value) => Value::from(*value),
        Field::UByte(value) => Value::from(*value),
        Field::UShort(value) => Value::from(*value),
        Field::UInt(value) => Value::from(*value),
        Field::ULong(value) => Value::from(*value),
        Field::Float(value) => Value::from(*value),
        Field::Double(value) => Value::from(*value),
        Field::Str(value) => Value::from(value.as_str()),
        // Some writers leave out that a column is text.
        Field::Bytes(value) => match std::str::from_utf8(value.data()) {
            Ok(text) => Value::from(text),
            Err(_) => Value::from(value.data()),
        },
        Field::Group(row) => json_of_row(row),
        Field::ListInternal(list) => Value::from(list.elements().iter().map(json_of).collect::<Vec<_>>()),
        other => Value::from(other.to_string()),
    }
}
