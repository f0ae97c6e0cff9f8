use super::*;

#[test]
fn an_identifier_is_an_instances() {
    for (raw, canonical) in [
        ("i-0123456789abcdef0", "i-0123456789abcdef0"),
        ("i-0123ABCD", "i-0123abcd"),
        ("i-01234567", "i-01234567"),
    ] {
        assert_eq!(instance(raw), Ok(ParsedId::unscoped(canonical)));
    }
    for raw in
        ["", "i-", "i-0123", "i-0123456789abcdef01", "i-0123456g", "vol-0123456789abcdef0", "i-01234567&a=b"]
    {
        assert!(instance(raw).is_err(), "{raw}");
    }
}
