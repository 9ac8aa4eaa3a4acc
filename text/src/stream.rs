//! The bytes of a data file, decompressed as they are read: gzip and Zstandard, in bounded memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::fd::FromRawFd;

use flate2::bufread::GzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::guard::Fault;

const BUFFER_BYTES: usize = 256 << 10;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Programs without a flag of their own refuse larger windows too.
const MOST_WINDOW_BYTES: u64 = 1 << 27;

type Input = Box<dyn BufRead>;

/// What a file's first bytes say of its compression, whatever its name is.
pub struct Stream {
    bytes: Input,
    compression: &'static str,
}

impl Stream {
    /// Takes the descriptor over.
    ///
    /// # Safety
    /// It is open, and nobody else closes it.
    pub unsafe fn of_descriptor(descriptor: i32) -> Result<Self, Fault> {
        let file = unsafe { File::from_raw_fd(descriptor) };
        Self::open(Box::new(BufReader::with_capacity(BUFFER_BYTES, file)))
    }

    pub fn of_bytes(bytes: &'static [u8]) -> Result<Self, Fault> {
        Self::open(Box::new(Cursor::new(bytes)))
    }

    fn open(mut input: Input) -> Result<Self, Fault> {
        let begin = input.fill_buf().map_err(|error| fault_of(&error))?;
        if begin.starts_with(&GZIP_MAGIC) {
            let bytes = BufReader::with_capacity(BUFFER_BYTES, GzipMembers::new(input));
            return Ok(Stream { bytes: Box::new(bytes), compression: "gzip" });
        }
        if begin.starts_with(&ZSTD_MAGIC) {
            let bytes = BufReader::with_capacity(BUFFER_BYTES, ZstdFrames::new(input));
            return Ok(Stream { bytes: Box::new(bytes), compression: "zstd" });
        }
        Ok(Stream { bytes: input, compression: "" })
    }

    /// "gzip", "zstd", or empty.
    pub fn compression(&self) -> &'static str {
        self.compression
    }

    /// The bytes that come next, at least one, or none at the end; consume() takes them.
    pub fn fill(&mut self) -> Result<&[u8], Fault> {
        self.bytes.fill_buf().map_err(|error| fault_of(&error))
    }

    pub fn consume(&mut self, bytes: usize) {
        self.bytes.consume(bytes);
    }

    /// How many bytes were written to the begin of `buffer`: less than it holds at the end alone.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        let mut done = 0;
        while done < buffer.len() {
            match self.bytes.read(&mut buffer[done..]) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(fault_of(&error)),
            }
        }
        Ok(done)
    }
}

fn fault_of(error: &io::Error) -> Fault {
    Fault::new(error.to_string())
}

fn damaged(format: &str, why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the {format} data is damaged: {why}"))
}

fn cut_off(format: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the {format} data has no end: is the file cut off?"))
}

/// Takes zero bytes off; whether something is left.
fn skip_zeros(input: &mut Input) -> io::Result<bool> {
    loop {
        let bytes = input.fill_buf()?;
        if bytes.is_empty() {
            return Ok(false);
        }
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let is_more = zeros < bytes.len();
        input.consume(zeros);
        if is_more {
            return Ok(true);
        }
    }
}

/// Members one after the other, as gzip files may have them; zeros after the last one are padding.
struct GzipMembers {
    member: Option<GzDecoder<Input>>,
}

impl GzipMembers {
    fn new(input: Input) -> Self {
        GzipMembers { member: Some(GzDecoder::new(input)) }
    }
}

impl Read for GzipMembers {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            match member.read(buffer) {
                Ok(0) => {}
                Ok(read) => return Ok(read),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(cut_off("gzip")),
                Err(error) => return Err(damaged("gzip", error)),
            }
            let Some(done) = self.member.take() else { break };
            let mut input = done.into_inner();
            if skip_zeros(&mut input)? {
                if !input.fill_buf()?.starts_with(&GZIP_MAGIC[..1]) {
                    return Err(damaged("gzip", "something else follows after the end of its last member"));
                }
                self.member = Some(GzDecoder::new(input));
            }
        }
        Ok(0)
    }
}

/// Frames one after the other; skippable ones are passed over.
struct ZstdFrames {
    input: Input,
    frame: Option<FrameDecoder>,
}

impl ZstdFrames {
    fn new(input: Input) -> Self {
        ZstdFrames { input, frame: None }
    }

    /// Whether there was one more.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.input.fill_buf()?.is_empty() {
            // A decoder that has been used reserves the window that the next frame claims; a new one nothing.
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(MOST_WINDOW_BYTES);
            match decoder.init(&mut self.input) {
                Ok(()) => {
                    self.frame = Some(decoder);
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let passed = io::copy(&mut (&mut self.input).take(length.into()), &mut io::sink())?;
                    if passed < length.into() {
                        return Err(cut_off("Zstandard"));
                    }
                }
                Err(error) => return Err(damaged("Zstandard", error)),
            }
        }
        Ok(false)
    }
}

impl Read for ZstdFrames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.frame.is_none() && !self.next_frame()? {
                return Ok(0);
            }
            let Some(frame) = &mut self.frame else { return Ok(0) };
            while frame.can_collect() == 0 && !frame.is_finished() {
                frame
                    .decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(|error| damaged("Zstandard", error))?;
            }
            let read = frame.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            let is_right =
                frame.get_checksum_from_data().is_none_or(|sum| frame.get_calculated_checksum() == Some(sum));
            if !is_right {
                return Err(damaged("Zstandard", "its checksum is wrong"));
            }
            self.frame = None;
        }
    }
}
