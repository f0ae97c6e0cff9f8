//! External Data Representation (RFC 4506), the part of it that libvirt's protocol uses.
//!
//! Everything is big-endian and padded to four bytes. The decoder trusts no input: it compares a length with the bytes that are
//! there before it allocates anything for it.

use thiserror::Error;
use uuid::Uuid;

/// The largest packet that libvirt sends or accepts, its length field included.
pub(crate) const MAX_PACKET: usize = 32 * 1024 * 1024;

/// The longest string that libvirt sends or accepts, in bytes.
pub(crate) const MAX_STRING: usize = 4 * 1024 * 1024;

/// The most domains or volumes in a list.
const MAX_LIST: usize = 16_384;

/// Bytes that are not what the protocol says they are.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum XdrError {
    /// The value ends before it is complete.
    #[error("{needed} bytes are needed where {left} are left")]
    Truncated {
        /// Bytes that the value needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// A string above the protocol's limit.
    #[error("a string of {0} bytes is longer than the {MAX_STRING} that libvirt allows")]
    StringTooLong(usize),
    /// A list above the protocol's limit. Its elements take more memory than bytes.
    #[error("a list of {0} elements is longer than the {MAX_LIST} that libvirt allows")]
    ListTooLong(usize),
    /// An optional value is marked by 0 or 1.
    #[error("{0} where only 0 (absent) or 1 (present) can be")]
    BadOption(u32),
    /// More bytes than the value has.
    #[error("{0} bytes are left over after the value")]
    Trailing(usize),
}

/// A value that can be written in XDR.
pub(crate) trait Encode {
    /// Appends the value to `out`.
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), XdrError>;
}

/// A value that can be read from XDR.
pub(crate) trait Decode: Sized {
    /// The fewest bytes a value can take; bounds the length of an array by the bytes that are there.
    const MIN_SIZE: usize;

    /// Takes the value off the front of `input`.
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError>;
}

/// Decodes a value that must fill `bytes` exactly.
pub(crate) fn decode_all<T: Decode>(bytes: &[u8]) -> Result<T, XdrError> {
    let mut decoder = Decoder::new(bytes);
    let value = T::decode(&mut decoder)?;
    match decoder.left() {
        0 => Ok(value),
        left => Err(XdrError::Trailing(left)),
    }
}

/// What is left to be read of a packet.
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], XdrError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(XdrError::Truncated { needed: count, left: self.rest.len() })?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], XdrError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(XdrError::Truncated { needed: N, left: self.rest.len() })?;
        self.rest = rest;
        Ok(*taken)
    }

    /// The bytes of a string.
    fn string(&mut self) -> Result<&'a [u8], XdrError> {
        let length = self.length()?;
        if length > MAX_STRING {
            return Err(XdrError::StringTooLong(length));
        }
        let bytes = self.take(length)?;
        self.take(padding(length))?;
        Ok(bytes)
    }

    /// A count of elements or bytes. A `u32` fits `usize` on every platform that has libvirt.
    fn length(&mut self) -> Result<usize, XdrError> {
        Ok(u32::decode(self)? as usize)
    }
}

/// Bytes that follow a string of `length` bytes, so that the next value starts at a multiple of four.
fn padding(length: usize) -> usize {
    length.next_multiple_of(4) - length
}

impl Encode for () {
    fn encode(&self, _: &mut Vec<u8>) -> Result<(), XdrError> {
        Ok(())
    }
}

impl Decode for () {
    const MIN_SIZE: usize = 0;

    fn decode(_: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(())
    }
}

/// Numbers and opaque bytes of fixed size.
macro_rules! fixed_size {
    ($($type:ty: $to_bytes:ident, $from_bytes:ident;)*) => {$(
        impl Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) -> Result<(), XdrError> {
                out.extend_from_slice(self.$to_bytes().as_slice());
                Ok(())
            }
        }

        impl Decode for $type {
            const MIN_SIZE: usize = size_of::<$type>();

            fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
                Ok(Self::$from_bytes(input.array()?))
            }
        }
    )*};
}

fixed_size! {
    i32: to_be_bytes, from_be_bytes;
    u32: to_be_bytes, from_be_bytes;
    u64: to_be_bytes, from_be_bytes;
    Uuid: as_bytes, from_bytes;
}

impl Encode for &str {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), XdrError> {
        let length = self.len();
        let count = u32::try_from(length)
            .ok()
            .filter(|_| length <= MAX_STRING)
            .ok_or(XdrError::StringTooLong(length))?;
        count.encode(out)?;
        out.extend_from_slice(self.as_bytes());
        out.resize(out.len() + padding(length), 0);
        Ok(())
    }
}

impl Decode for String {
    const MIN_SIZE: usize = 4;

    /// libvirt's strings are bytes: a file in a storage pool may have any name. What is not UTF-8 gets replacement
    /// characters, so that one odd file does not make a whole pool unreadable.
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(String::from_utf8_lossy(input.string()?).into_owned())
    }
}

/// The beginning of a string: at most so many bytes of it. It takes no memory for the rest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Beginning<const MOST: usize>(pub(crate) String);

impl<const MOST: usize> Decode for Beginning<MOST> {
    const MIN_SIZE: usize = String::MIN_SIZE;

    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let bytes = input.string()?;
        Ok(Self(String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)]).into_owned()))
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), XdrError> {
        u32::from(self.is_some()).encode(out)?;
        self.as_ref().map_or(Ok(()), |value| value.encode(out))
    }
}

impl<T: Decode> Decode for Option<T> {
    const MIN_SIZE: usize = 4;

    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        match u32::decode(input)? {
            0 => Ok(None),
            1 => T::decode(input).map(Some),
            other => Err(XdrError::BadOption(other)),
        }
    }
}

impl<T: Decode> Decode for Vec<T> {
    const MIN_SIZE: usize = 4;

    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let count = input.length()?;
        if count > MAX_LIST {
            return Err(XdrError::ListTooLong(count));
        }
        let needed = count.saturating_mul(T::MIN_SIZE);
        if needed > input.left() {
            return Err(XdrError::Truncated { needed, left: input.left() });
        }
        // Grown as elements are found, because an element in memory is larger than the smallest one in the protocol.
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(T::decode(input)?);
        }
        Ok(values)
    }
}

/// Fields one after the other, as in a structure.
macro_rules! tuples {
    ($(($($name:ident),+))*) => {$(
        impl<$($name: Encode),+> Encode for ($($name,)+) {
            fn encode(&self, out: &mut Vec<u8>) -> Result<(), XdrError> {
                #[allow(non_snake_case, reason = "each field is named like its type parameter")]
                let ($($name,)+) = self;
                $($name.encode(out)?;)+
                Ok(())
            }
        }

        impl<$($name: Decode),+> Decode for ($($name,)+) {
            const MIN_SIZE: usize = 0 $(+ $name::MIN_SIZE)+;

            fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
                Ok(($($name::decode(input)?,)+))
            }
        }
    )*};
}

tuples! { (A) (A, B) (A, B, C) }

#[cfg(test)]
mod tests;
