//! Packets: a length, a header, a payload.

use tokio::io::{AsyncRead, AsyncReadExt, copy, sink};

use crate::error::{Error, ProtocolError};
use crate::xdr::{Decode, Decoder, Encode, MAX_PACKET, XdrError};

/// The program of hypervisor calls.
pub(crate) const REMOTE_PROGRAM: u32 = 0x2000_8086;
/// The program for keepalive messages, which distinguish a silent peer from a dead one.
pub(crate) const KEEPALIVE_PROGRAM: u32 = 0x6b65_6570;
/// Keepalive's question.
pub(crate) const KEEPALIVE_PING: i32 = 1;
/// Keepalive's answer.
pub(crate) const KEEPALIVE_PONG: i32 = 2;
/// Both programs have always been at their first version.
const PROGRAM_VERSION: u32 = 1;

/// The field in front of the header.
const LENGTH_SIZE: usize = 4;
/// The header, without the length in front of it.
pub(crate) const HEADER_SIZE: usize = 24;
/// Where the serial is in a whole packet.
const SERIAL_OFFSET: usize = LENGTH_SIZE + 16;
/// A packet's buffer grows in steps of at least this much as its bytes come in.
const READ_STEP: usize = 8 * 1024;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Call,
    Reply,
    Message,
    Stream,
}

impl Kind {
    fn number(self) -> i32 {
        match self {
            Self::Call => 0,
            Self::Reply => 1,
            Self::Message => 2,
            Self::Stream => 3,
        }
    }

    fn from_number(number: i32) -> Option<Self> {
        [Self::Call, Self::Reply, Self::Message, Self::Stream]
            .into_iter()
            .find(|kind| kind.number() == number)
    }
}

/// The status of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    Error,
    Continue,
}

impl Status {
    fn number(self) -> i32 {
        match self {
            Self::Ok => 0,
            Self::Error => 1,
            Self::Continue => 2,
        }
    }

    fn from_number(number: i32) -> Option<Self> {
        [Self::Ok, Self::Error, Self::Continue].into_iter().find(|status| status.number() == number)
    }
}

/// The header in front of every payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) program: u32,
    pub(crate) procedure: i32,
    pub(crate) kind: Kind,
    pub(crate) serial: u32,
    pub(crate) status: Status,
}

impl Header {
    /// The whole packet with this header.
    pub(crate) fn packet(&self, payload: &impl Encode) -> Result<Vec<u8>, Error> {
        let mut packet = Vec::with_capacity(128);
        (0u32, self.program, PROGRAM_VERSION).encode(&mut packet)?;
        (self.procedure, self.kind.number()).encode(&mut packet)?;
        (self.serial, self.status.number()).encode(&mut packet)?;
        payload.encode(&mut packet)?;
        let length = u32::try_from(packet.len())
            .ok()
            .filter(|_| packet.len() <= MAX_PACKET)
            .ok_or(ProtocolError::Length(packet.len()))?;
        packet[..LENGTH_SIZE].copy_from_slice(&length.to_be_bytes());
        Ok(packet)
    }

    fn decode(input: &mut Decoder<'_>) -> Result<Self, ProtocolError> {
        let (program, version) = <(u32, u32)>::decode(input)?;
        let (procedure, kind) = <(i32, i32)>::decode(input)?;
        let (serial, status) = <(u32, i32)>::decode(input)?;
        if !matches!(program, REMOTE_PROGRAM | KEEPALIVE_PROGRAM) || version != PROGRAM_VERSION {
            return Err(ProtocolError::Program { program, version });
        }
        let kind = Kind::from_number(kind).ok_or(ProtocolError::Kind(kind))?;
        let status = Status::from_number(status).ok_or(ProtocolError::Status(status))?;
        Ok(Self { program, procedure, kind, serial, status })
    }
}

/// A call, complete except for its serial.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) procedure: i32,
    packet: Vec<u8>,
}

impl Call {
    pub(crate) fn new(procedure: i32, arguments: &impl Encode) -> Result<Self, Error> {
        let header =
            Header { program: REMOTE_PROGRAM, procedure, kind: Kind::Call, serial: 0, status: Status::Ok };
        Ok(Self { procedure, packet: header.packet(arguments)? })
    }

    pub(crate) fn with_serial(mut self, serial: u32) -> Vec<u8> {
        self.packet[SERIAL_OFFSET..SERIAL_OFFSET + 4].copy_from_slice(&serial.to_be_bytes());
        self.packet
    }
}

/// The answer to keepalive's question.
pub(crate) fn pong() -> Result<Vec<u8>, Error> {
    let (kind, status) = (Kind::Message, Status::Ok);
    Header { program: KEEPALIVE_PROGRAM, procedure: KEEPALIVE_PONG, kind, serial: 0, status }.packet(&())
}

/// A packet that came in.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) header: Header,
    /// Header and payload as they arrived: the payload is not copied out.
    bytes: Vec<u8>,
}

impl Packet {
    pub(crate) fn payload(&self) -> &[u8] {
        // A header was decoded from these bytes, so they are at least as long.
        &self.bytes[HEADER_SIZE..]
    }

    /// Reads one packet. It takes memory as bytes arrive, never for an announced length, and none for a payload that is not `wanted`.
    pub(crate) async fn read(
        reader: &mut (impl AsyncRead + Unpin),
        wanted: impl FnOnce(&Header) -> bool,
    ) -> Result<Self, Error> {
        let mut length = [0; LENGTH_SIZE];
        reader.read_exact(&mut length).await?;
        let length = u32::from_be_bytes(length) as usize;
        if !(LENGTH_SIZE + HEADER_SIZE..=MAX_PACKET).contains(&length) {
            return Err(ProtocolError::Length(length).into());
        }
        let length = length - LENGTH_SIZE;
        let mut bytes = vec![0; HEADER_SIZE];
        reader.read_exact(&mut bytes).await?;
        let header = Header::decode(&mut Decoder::new(&bytes))?;
        if !wanted(&header) {
            let missing = (length - HEADER_SIZE) as u64;
            let skipped = copy(&mut reader.take(missing), &mut sink()).await?;
            return if skipped == missing {
                Ok(Self { header, bytes })
            } else {
                Err(cut_off(missing - skipped))
            };
        }
        while bytes.len() < length {
            let missing = length - bytes.len();
            if bytes.len() == bytes.capacity() {
                bytes.reserve_exact(growth(bytes.len(), missing));
            }
            if (&mut *reader).take(missing as u64).read_buf(&mut bytes).await? == 0 {
                return Err(cut_off(missing as u64));
            }
        }
        Ok(Self { header, bytes })
    }
}

/// The connection ended in the middle of a packet of which so many bytes are missing.
fn cut_off(missing: u64) -> Error {
    // No packet is larger than `MAX_PACKET`.
    let needed = usize::try_from(missing).unwrap_or(MAX_PACKET);
    XdrError::Truncated { needed, left: 0 }.into()
}

/// How much a buffer that is full grows, with `have` bytes in it and `missing` still to come: at most twofold.
fn growth(have: usize, missing: usize) -> usize {
    missing.min(have.max(READ_STEP))
}

#[cfg(test)]
mod tests;
