use proptest::prelude::*;

use super::*;
use crate::error::RemoteError;
use crate::objects::{Domain, Pool, Volume};

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out).unwrap();
    out
}

#[test]
fn numbers_are_big_endian_and_strings_are_padded_to_four_bytes() {
    assert_eq!(encoded(&(1u32, -2i32)), [0, 0, 0, 1, 255, 255, 255, 254]);
    assert_eq!(encoded(&0x0102_0304_0506_0708u64), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(encoded(&"abcde"), [0, 0, 0, 5, b'a', b'b', b'c', b'd', b'e', 0, 0, 0]);
    assert_eq!(encoded(&""), [0, 0, 0, 0]);
    assert_eq!(encoded(&None::<&str>), [0, 0, 0, 0]);
    assert_eq!(encoded(&Some("abcd")), [0, 0, 0, 1, 0, 0, 0, 4, b'a', b'b', b'c', b'd']);
    assert_eq!(encoded(&Uuid::from_u128(1)), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn a_count_beyond_the_packet_is_refused_before_memory_is_taken() {
    let huge = [0xff; 8];
    assert_eq!(decode_all::<Vec<Volume>>(&huge), Err(XdrError::ListTooLong(0xffff_ffff)));
    let many = [0, 0, 0x40, 0, 0, 0, 0, 0];
    assert!(matches!(decode_all::<Vec<Volume>>(&many), Err(XdrError::Truncated { left: 4, .. })));
    assert_eq!(decode_all::<String>(&huge), Err(XdrError::StringTooLong(0xffff_ffff)));
    let long = [0, 0x10, 0, 0, 1, 2, 3, 4];
    assert_eq!(decode_all::<String>(&long), Err(XdrError::Truncated { needed: 0x0010_0000, left: 4 }));
}

#[test]
fn a_string_above_the_limit_is_not_sent() {
    let long = "x".repeat(MAX_STRING + 1);
    assert_eq!(long.as_str().encode(&mut Vec::new()), Err(XdrError::StringTooLong(MAX_STRING + 1)));
    assert_eq!(encoded(&&long[1..]).len(), MAX_STRING + 4);
}

#[test]
fn a_value_must_fill_its_bytes() {
    assert_eq!(decode_all::<u32>(&[0; 5]), Err(XdrError::Trailing(1)));
    assert_eq!(decode_all::<u32>(&[0; 3]), Err(XdrError::Truncated { needed: 4, left: 3 }));
    assert_eq!(decode_all::<Option<u32>>(&[0, 0, 0, 2, 0, 0, 0, 0]), Err(XdrError::BadOption(2)));
}

#[test]
fn a_name_that_is_not_utf8_is_still_readable() {
    assert_eq!(decode_all::<String>(&[0, 0, 0, 1, 0xe4, 0, 0, 0]).unwrap(), "\u{fffd}");
}

/// libvirt's answer to a look-up of a UUID that it does not know, as recorded from libvirtd 9.0.
#[test]
fn an_error_of_libvirtd_is_read() {
    let message = "Domain not found";
    let mut bytes = encoded(&(42i32, 12i32, Some(message)));
    bytes.extend(encoded(&(2i32, None::<&str>)));
    bytes.extend(encoded(&(Some("Domain not found: %s"), Some(message), None::<&str>)));
    bytes.extend(encoded(&(-1i32, -1i32, None::<&str>)));
    let error: RemoteError = decode_all(&bytes).unwrap();
    assert_eq!(error.code, crate::ErrorCode::NoDomain);
    assert_eq!(error.to_string(), "libvirt: Domain not found (error 42 NoDomain, domain 12)");
}

#[test]
fn of_an_error_of_megabytes_only_the_beginning_is_kept() {
    let long = "m".repeat(3 << 20);
    let mut bytes = encoded(&(1i32, 10i32, Some(&*long)));
    bytes.extend(encoded(&(2i32, None::<&str>)));
    bytes.extend(encoded(&(Some(&*long), Some(&*long), Some(&*long))));
    bytes.extend(encoded(&(-1i32, -1i32, None::<&str>)));
    let error: RemoteError = decode_all(&bytes).unwrap();
    assert_eq!(error.message, "m".repeat(1000));
}

fn domains() -> impl Strategy<Value = Domain> {
    (".{0,40}", any::<u128>(), any::<i32>()).prop_map(|(name, uuid, id)| Domain {
        name,
        uuid: Uuid::from_u128(uuid),
        id,
    })
}

/// Everything that the client ever reads.
fn decode_everything(bytes: &[u8]) {
    let _ = decode_all::<()>(bytes);
    let _ = decode_all::<u64>(bytes);
    let _ = decode_all::<String>(bytes);
    let _ = decode_all::<(i32, i32)>(bytes);
    let _ = decode_all::<Vec<i32>>(bytes);
    let _ = decode_all::<Domain>(bytes);
    let _ = decode_all::<Pool>(bytes);
    let _ = decode_all::<Volume>(bytes);
    let _ = decode_all::<RemoteError>(bytes);
    if let Ok((domains, _)) = decode_all::<(Vec<Domain>, u32)>(bytes) {
        assert!(domains.len() * Domain::MIN_SIZE <= bytes.len());
    }
    if let Ok((volumes, _)) = decode_all::<(Vec<Volume>, u32)>(bytes) {
        assert!(volumes.len() * Volume::MIN_SIZE <= bytes.len());
    }
}

proptest! {
    #[test]
    fn encoded_values_decode_to_the_same_values(
        domain in domains(),
        volume in (".{0,20}", ".{0,20}", ".{0,20}"),
        pool in (".{0,20}", any::<u128>()),
        numbers in any::<(u32, i32, u64)>(),
        text in proptest::option::of(".{0,99}"),
    ) {
        prop_assert_eq!(decode_all::<Domain>(&encoded(&&domain)).unwrap(), domain);
        let (pool_name, name, key) = volume;
        let volume = Volume { pool: pool_name, name, key };
        prop_assert_eq!(decode_all::<Volume>(&encoded(&&volume)).unwrap(), volume);
        let pool = Pool { name: pool.0, uuid: Uuid::from_u128(pool.1) };
        prop_assert_eq!(decode_all::<Pool>(&encoded(&&pool)).unwrap(), pool);
        prop_assert_eq!(decode_all::<(u32, i32, u64)>(&encoded(&numbers)).unwrap(), numbers);
        prop_assert_eq!(decode_all::<Option<String>>(&encoded(&text.as_deref())).unwrap(), text);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        decode_everything(&bytes);
    }

    /// Small numbers are likely lengths, counts and marks, so these bytes get further than random ones.
    #[test]
    fn likely_bytes_never_panic(words in proptest::collection::vec(prop_oneof![0u32..9, any::<u32>()], 0..64)) {
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        decode_everything(&bytes);
    }

    #[test]
    fn a_broken_list_never_panics(
        list in proptest::collection::vec(domains(), 0..6),
        cut in any::<prop::sample::Index>(),
        flip in any::<prop::sample::Index>(),
        bit in 0..8,
    ) {
        let mut bytes = encoded(&u32::try_from(list.len()).unwrap());
        for domain in &list {
            bytes.extend(encoded(&domain));
        }
        bytes.extend(encoded(&u32::try_from(list.len()).unwrap()));
        prop_assert_eq!(&decode_all::<(Vec<Domain>, u32)>(&bytes).unwrap().0, &list);
        let cut = cut.index(bytes.len());
        prop_assert!(decode_all::<(Vec<Domain>, u32)>(&bytes[..cut]).is_err(), "a cut list is an error");
        decode_everything(&bytes[..cut]);
        let flip = flip.index(bytes.len());
        bytes[flip] ^= 1u8 << bit;
        decode_everything(&bytes);
    }
}
