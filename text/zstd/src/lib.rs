//! Stands in for the crate `zstd`, whose C library has the names of the one inside LibTorch. It has what the crate `parquet`
//! calls, and decodes only: Sherd writes no Parquet.

#![forbid(unsafe_code)]

/// Whole buffers at once.
pub mod bulk {
    use std::io::{Cursor, Error, ErrorKind, Result};
    use std::marker::PhantomData;

    use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
    use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

    /// The largest window that the C library takes, too, where nothing else is asked for.
    const MOST_WINDOW_BYTES: u64 = 1 << 27;

    /// Reads frames.
    pub struct Decompressor<'a>(PhantomData<&'a ()>);

    impl Decompressor<'static> {
        pub fn new() -> Result<Self> {
            Ok(Decompressor(PhantomData))
        }
    }

    impl Decompressor<'_> {
        /// Writes what the frames of `source` hold behind the cursor, and returns how many bytes that are: at most as many
        /// as the vector has capacity for. Memory: twice what is written, and a block of 128 KiB, whatever the frames claim.
        pub fn decompress_to_buffer(&mut self, source: &[u8], destination: &mut Cursor<&mut Vec<u8>>) -> Result<usize> {
            let begin = destination.position() as usize;
            let output = &mut **destination.get_mut();
            let capacity = output.capacity();
            output.truncate(begin);
            let mut rest = source;
            while !rest.is_empty() {
                decode_frame(&mut rest, output, capacity)?;
            }
            let end = output.len();
            destination.set_position(end as u64);
            Ok(end - begin)
        }
    }

    /// Takes one frame off `source`.
    fn decode_frame(source: &mut &[u8], output: &mut Vec<u8>, capacity: usize) -> Result<()> {
        // A decoder that has been used reserves the window that the next frame claims; a new one nothing.
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MOST_WINDOW_BYTES);
        match decoder.init(&mut *source) {
            Ok(()) => {}
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                *source = source.get(length as usize..).ok_or_else(|| damaged("a skippable frame has no end"))?;
                return Ok(());
            }
            Err(error) => return Err(damaged(error)),
        }
        let room = capacity - output.len();
        let is_whole =
            decoder.decode_blocks(&mut *source, BlockDecodingStrategy::UptoBytes(room + 1)).map_err(damaged)?;
        if !is_whole || decoder.can_collect() > room {
            return Err(damaged("it holds more than its header says"));
        }
        decoder.collect_to_writer(output)?;
        let told = decoder.get_checksum_from_data();
        if told.is_some() && told != decoder.get_calculated_checksum() {
            return Err(damaged("its checksum does not match"));
        }
        Ok(())
    }

    fn damaged(why: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::InvalidData, format!("data compressed by zstd is damaged: {why}"))
    }

    /// There is none: every call fails.
    pub struct Compressor<'a>(PhantomData<&'a ()>);

    impl Compressor<'static> {
        pub fn new(_level: i32) -> Result<Self> {
            Ok(Compressor(PhantomData))
        }
    }

    impl Compressor<'_> {
        pub fn compress_to_buffer(&mut self, _source: &[u8], _destination: &mut Cursor<&mut Vec<u8>>) -> Result<usize> {
            Err(Error::new(ErrorKind::Unsupported, "zstd is only read"))
        }
    }
}

/// Sizes.
pub mod zstd_safe {
    /// Not looked up: who reads pages knows how long they are.
    pub fn get_frame_content_size(_frame: &[u8]) -> Result<Option<u64>, std::convert::Infallible> {
        Ok(None)
    }

    pub fn compress_bound(bytes: usize) -> usize {
        bytes
    }
}
