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
    for raw in [
        "",
        "i-",
        "i-0123",
        "i-012345678",
        "i-0123456789abcdef01",
        "i-0123456g",
        "vol-0123456789abcdef0",
        "i-01234567&a=b",
    ] {
        assert!(instance(raw).is_err(), "{raw}");
    }
}

#[test]
fn the_documented_policy_is_the_one_that_is_tested() {
    let page = include_str!("../../../docs/src/providers/aws.md");
    assert!(
        page.contains(POLICY),
        "docs/src/providers/aws.md has another policy than src/provider/aws/policy.json"
    );
}

#[test]
fn settings_say_where_vms_are_and_refuse_what_is_no_place() {
    use crate::{
        provider::http::identity::variable,
        settings::{Raw, Snapshot},
    };

    let parse = |pairs: &[(&str, &str)]| {
        let mut raw = Raw::default();
        raw.settings.insert("CLOUD_PROVIDER".into(), "aws".into());
        raw.settings.extend(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
        Snapshot::parse(&raw, crate::provider::CATALOGUE)
    };
    // These spellings are recorded. An identity webhook may have told the region.
    let node = variable("AWS_REGION").unwrap_or_else(|| "instance-metadata".to_owned());
    for (pairs, address) in [
        (&[("AWS_REGION", "eu-west-1")][..], "eu-west-1"),
        (&[("AWS_REGION", "eu-west-1"), ("AWS_ENDPOINT_URL", "https://a:1")], "eu-west-1 https://a:1"),
        (&[("AWS_REGION", "RegionOne"), ("AWS_ENDPOINT_URL", "https://a/b/")], "RegionOne https://a/b/"),
        (&[], &*node),
        (&[("AWS_ENDPOINT_URL", "https://a:1/")], &*format!("{node} https://a:1/")),
    ] {
        let snapshot = parse(pairs).unwrap();
        assert_eq!(snapshot.endpoint().unwrap().address, address);
        let place = RegionPlace::recorded(address).unwrap();
        assert_eq!(place.to_string(), address);
    }
    for wrong in [
        ("AWS_REGION", "eu-west-1.example.org/"),
        ("AWS_ENDPOINT_URL", "ftp://a"),
        ("AWS_ENDPOINT_URL_STS", "http://a"),
        ("AWS_ENDPOINT_URL", "http://a"),
        ("AWS_ROLE_ARN", "alone"),
        ("AWS_ENDPOINT_URL", "https://user@a"),
        ("AWS_ACCESS_KEY_ID", "alone"),
    ] {
        assert!(parse(&[wrong]).unwrap().endpoint().is_err(), "{wrong:?}");
    }
}

#[test]
fn an_instance_without_any_tag_is_refused_because_its_tags_may_not_be_shown_yet() {
    let instance = |tags: &str| {
        let instance = format!(
            "<item><instancesSet><item><instanceId>i-01234567</instanceId><instanceState><name>pending</name></instanceState>\
             <tagSet>{tags}</tagSet></item></instancesSet></item>"
        );
        let made = Instance::of(&Node::parse(&instance).unwrap()).unwrap();
        ensure_tagged(made.into_iter().next().unwrap().vm)
    };
    assert_eq!(instance("").unwrap_err().class, ErrorClass::Refused);
    // Another's, which is there, and never a pod VM.
    let other = instance("<item><key>owner</key><value>a</value></item>").unwrap();
    assert_eq!(other.name, "");
}

#[test]
fn an_address_is_of_the_instance_that_its_name_names() {
    let vm = |id: &str, name: &str| {
        let tag = format!("<item><resourceId>{id}</resourceId><key>Name</key><value>{name}</value></item>");
        let listed = side_resource(&Node::parse(&tag).unwrap()).unwrap();
        (listed.kind, listed.vm)
    };
    let instance = || Some(VmRef::Id("i-0123456789abcdef0".to_owned()));
    assert_eq!(vm("eipalloc-1", "eip-i-0123456789abcdef0"), (Resource::Address, instance()));
    assert_eq!(vm("eni-1", "nic-i-0123456789abcdef0"), (Resource::Interface, instance()));
    for name in ["eip-i-", "eip-i-mine", "eip-podvm-a", "i-0123456789abcdef0"] {
        assert_eq!(vm("eipalloc-1", name).1, None, "{name}");
    }
}
