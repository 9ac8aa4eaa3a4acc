//! Rows of a CSV or TSV file as JSON objects of texts, one at a time.

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use serde_json::{Map, Value};

use crate::guard::Fault;
use crate::stream::Stream;

/// Of a record, in every kind of file (llm/text/record_json.h).
const MOST_ROW_BYTES: usize = 16 << 20;
const MOST_COLUMNS: usize = 10_000;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A row, or why it is bad, and where it stands.
pub struct Row {
    pub text: String,
    pub is_fault: bool,
    /// From 1; lines end with a line feed.
    pub line: u64,
    pub begin_byte: u64,
    pub end_byte: u64,
}

/// A file whose first row has the names of its columns.
pub struct Table {
    stream: Stream,
    parser: Reader,
    columns: Vec<String>,
    line: u64,
    byte: u64,
    output: Vec<u8>,
    ends: Vec<usize>,
}

/// What one row of the parser came to.
enum Parsed {
    Row { fields: usize },
    TooLong,
    OpenQuote,
    End,
}

impl Table {
    pub fn open(stream: Stream, delimiter: u8) -> Result<Self, Fault> {
        let parser = ReaderBuilder::new().delimiter(delimiter).build();
        let mut table =
            Table { stream, parser, columns: vec![], line: 1, byte: 0, output: vec![0; 4096], ends: vec![0; 64] };
        if table.stream.fill()?.starts_with(BYTE_ORDER_MARK) {
            table.take(BYTE_ORDER_MARK.len())?;
        }
        table.pass_line_ends()?;
        match table.parse()? {
            Parsed::Row { fields } => {
                let names = (0..fields).map(|i| std::str::from_utf8(table.field(i)).map(str::to_owned));
                table.columns = names
                    .collect::<Result<_, _>>()
                    .map_err(|_| Fault::new("the first row, with the names of the columns, is not UTF-8".to_owned()))?;
            }
            Parsed::End => {}
            Parsed::TooLong => return Err(Fault::new("its first row is too long for names of columns".to_owned())),
            Parsed::OpenQuote => return Err(Fault::new("a quote of the first row has no end".to_owned())),
        }
        table.require_distinct_columns()?;
        Ok(table)
    }

    fn require_distinct_columns(&self) -> Result<(), Fault> {
        for (i, name) in self.columns.iter().enumerate() {
            if self.columns[..i].contains(name) {
                return Err(Fault::new(format!("two of its columns have the name \"{name}\"")));
            }
        }
        Ok(())
    }

    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// None at the end.
    pub fn next(&mut self) -> Result<Option<Row>, Fault> {
        self.pass_line_ends()?;
        let (line, begin_byte) = (self.line, self.byte);
        let (text, is_fault) = match self.parse()? {
            Parsed::End => return Ok(None),
            Parsed::TooLong => (format!("has more than {MOST_ROW_BYTES} bytes, more than a record may have"), true),
            Parsed::OpenQuote => ("a quote has no end: is one missing in this row?".to_owned(), true),
            Parsed::Row { fields } => match self.json_of_row(fields) {
                Ok(text) => (text, false),
                Err(why) => (why, true),
            },
        };
        Ok(Some(Row { text, is_fault, line, begin_byte, end_byte: self.byte }))
    }

    fn json_of_row(&self, fields: usize) -> Result<String, String> {
        if fields != self.columns.len() {
            let count = |n: usize| format!("{n} field{}", if n == 1 { "" } else { "s" });
            return Err(format!("has {}, and the first row has {}", count(fields), count(self.columns.len())));
        }
        let mut row = Map::new();
        for (i, name) in self.columns.iter().enumerate() {
            let text = std::str::from_utf8(self.field(i)).map_err(|_| format!("the column \"{name}\" is not UTF-8"))?;
            row.insert(name.clone(), Value::from(text));
        }
        Ok(Value::Object(row).to_string())
    }

    fn field(&self, i: usize) -> &[u8] {
        let begin = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.output[begin..self.ends[i]]
    }

    /// Line ends before a row, so that its place is where it begins.
    fn pass_line_ends(&mut self) -> Result<(), Fault> {
        loop {
            let bytes = self.stream.fill()?;
            let passed = bytes.iter().take_while(|byte| **byte == b'\n' || **byte == b'\r').count();
            if passed == 0 {
                return Ok(());
            }
            self.take(passed)?;
        }
    }

    /// Takes the next bytes off the stream.
    fn take(&mut self, bytes: usize) -> Result<(), Fault> {
        let taken = &self.stream.fill()?[..bytes];
        self.line += taken.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.byte += bytes as u64;
        self.stream.consume(bytes);
        Ok(())
    }

    /// Reads one row into `output` and `ends`. Of one that is too long the rest is passed over.
    fn parse(&mut self) -> Result<Parsed, Fault> {
        const LINE_END: &[u8] = b"\n";
        let (mut written, mut fields) = (0, 0);
        let mut is_too_long = false;
        let mut has_begun = false;
        let mut end_sent = false;
        loop {
            let bytes = self.stream.fill()?;
            let is_end = bytes.is_empty();
            if is_end && !has_begun {
                return Ok(Parsed::End);
            }
            // A line end that ends no row stands in quotes.
            let input = if !is_end { bytes } else { LINE_END };
            if is_end && end_sent {
                return Ok(Parsed::OpenQuote);
            }
            let (result, read, wrote, ended) =
                self.parser.read_record(input, &mut self.output[written..], &mut self.ends[fields..]);
            written += wrote;
            fields += ended;
            has_begun = true;
            if is_end {
                end_sent = read == LINE_END.len();
            } else {
                self.take(read)?;
            }
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if self.output.len() < MOST_ROW_BYTES => {
                    self.output.resize(self.output.len() * 2, 0);
                }
                ReadRecordResult::OutputEndsFull if self.ends.len() < MOST_COLUMNS => {
                    self.ends.resize(self.ends.len() * 2, 0);
                }
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    is_too_long = true;
                    (written, fields) = (0, 0);
                }
                ReadRecordResult::Record if is_too_long => return Ok(Parsed::TooLong),
                ReadRecordResult::Record => return Ok(Parsed::Row { fields }),
                ReadRecordResult::End => return Ok(Parsed::End),
            }
        }
    }
}
