use proptest::prelude::*;

use super::*;

fn read(mut bytes: &[u8]) -> Result<Packet, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(Packet::read(&mut bytes, |_| true))
}

/// A look-up of a domain by UUID, byte by byte.
#[test]
fn a_call_is_laid_out_as_libvirt_expects() {
    let uuid = uuid::Uuid::from_bytes([7; 16]);
    let packet = Call::new(24, &(uuid,)).unwrap().with_serial(0x0102_0304);
    let mut expected = vec![0, 0, 0, 44, 0x20, 0, 0x80, 0x86, 0, 0, 0, 1, 0, 0, 0, 24, 0, 0, 0, 0];
    expected.extend([1, 2, 3, 4, 0, 0, 0, 0]);
    expected.extend([7; 16]);
    assert_eq!(packet, expected);
}

#[test]
fn a_length_outside_the_limits_is_refused_at_once() {
    for length in [0, 27, MAX_PACKET + 1, u32::MAX as usize] {
        let bytes = u32::try_from(length).unwrap().to_be_bytes();
        let error = read(&bytes).unwrap_err();
        assert!(matches!(error, Error::Protocol(ProtocolError::Length(got)) if got == length), "{error}");
    }
    assert!(
        matches!(Call::new(1, &("x".repeat(4 << 20).as_str(),)), Ok(call) if call.packet.len() < MAX_PACKET)
    );
}

#[test]
fn a_header_that_libvirt_never_sends_is_refused() {
    let good = Call::new(24, &()).unwrap().with_serial(1);
    assert_eq!(read(&good).unwrap().header.procedure, 24);
    for (offset, expected) in [
        (4, ProtocolError::Program { program: 0xff00_8086, version: 1 }),
        (11, ProtocolError::Program { program: REMOTE_PROGRAM, version: 255 }),
        (19, ProtocolError::Kind(255)),
        (27, ProtocolError::Status(255)),
    ] {
        let mut bad = good.clone();
        bad[offset] = 255;
        assert!(matches!(read(&bad).unwrap_err(), Error::Protocol(error) if error == expected), "{offset}");
    }
}

#[test]
fn a_payload_that_is_not_wanted_is_skipped() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let [first, second] = [1, 2].map(|serial| Call::new(24, &"payload").unwrap().with_serial(serial));
    let both = [first.clone(), second].concat();
    let mut bytes = &both[..];
    let mut next = || runtime.block_on(Packet::read(&mut bytes, |header| header.serial == 2)).unwrap();
    let (skipped, read) = (next(), next());
    assert_eq!((skipped.header.serial, skipped.bytes.capacity()), (1, HEADER_SIZE));
    assert_eq!(crate::xdr::decode_all::<String>(read.payload()).unwrap(), "payload");
    let mut cut = &first[..first.len() - 1];
    assert!(runtime.block_on(Packet::read(&mut cut, |_| false)).is_err());
}

proptest! {
    #[test]
    fn a_buffer_never_outgrows_what_came_in_or_what_is_missing(have in 0..MAX_PACKET, missing in 1..MAX_PACKET) {
        let growth = growth(have, missing);
        prop_assert!((1..=missing).contains(&growth));
        prop_assert!(growth <= have.max(READ_STEP));
    }

    #[test]
    fn encoded_calls_decode_to_the_same_header_and_payload(serial: u32, procedure: i32, payload in ".{0,3000}") {
        let packet = Call::new(procedure, &payload.as_str()).unwrap().with_serial(serial);
        let read = read(&packet).unwrap();
        let expected =
            Header { program: REMOTE_PROGRAM, procedure, kind: Kind::Call, serial, status: Status::Ok };
        prop_assert_eq!(read.header, expected);
        prop_assert_eq!(crate::xdr::decode_all::<String>(read.payload()).unwrap(), payload);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        let _ = read(&bytes);
    }

    #[test]
    fn a_cut_packet_is_an_error(cut in any::<prop::sample::Index>(), payload in ".{0,300}") {
        let packet = Call::new(1, &payload.as_str()).unwrap().with_serial(1);
        prop_assert!(read(&packet[..cut.index(packet.len())]).is_err());
    }

    #[test]
    fn a_flipped_bit_never_panics(flip in any::<prop::sample::Index>(), bit in 0..8, payload in ".{0,300}") {
        let mut packet = Call::new(1, &payload.as_str()).unwrap().with_serial(1);
        let flip = flip.index(packet.len());
        packet[flip] ^= 1u8 << bit;
        let _ = read(&packet);
    }
}
