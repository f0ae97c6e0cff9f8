use super::{settings::OF_THE_NODES, *};
use crate::{
    provider::CATALOGUE,
    settings::{Raw, Snapshot},
};

#[test]
fn an_identifier_is_one_segment_of_a_path() {
    for raw in ["0717_1e09281b-f177-46f2-b1f1-bc152b2e391a", "02u7-1", "1e09281b-f177-46f2-b1f1-bc152b2e391a"]
    {
        assert_eq!(instance(raw), Ok(ParsedId::unscoped(raw)));
    }
    let long = "0".repeat(65);
    for raw in ["", "0717_1/2", "..", "0717_1?a=b", "0717_1%2f", "0717_1 2", "0717_A", &long] {
        assert!(instance(raw).is_err(), "{raw}");
    }
}

fn parse(pairs: &[(&str, &str)]) -> Snapshot {
    let mut raw = Raw::default();
    raw.settings.insert("CLOUD_PROVIDER".into(), "ibmcloud".into());
    raw.settings.extend(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
    Snapshot::parse(&raw, CATALOGUE).unwrap()
}

#[test]
fn settings_name_the_api_of_one_region() {
    for endpoint in ["https://eu-de.iaas.cloud.ibm.com/v1", "https://eu-de.iaas.cloud.ibm.com/v1/"] {
        for credentials in ["IBMCLOUD_API_KEY", "IBMCLOUD_IAM_PROFILE_ID"] {
            let snapshot = parse(&[("IBMCLOUD_VPC_ENDPOINT", endpoint), (credentials, "secret")]);
            let found = snapshot.endpoint().unwrap();
            assert_eq!(
                (found.setting, &*found.address),
                ("IBMCLOUD_VPC_ENDPOINT", "https://eu-de.iaas.cloud.ibm.com/v1")
            );
        }
    }
}

#[test]
fn settings_that_name_no_endpoint_mean_the_region_of_the_nodes() {
    for endpoint in [&[("IBMCLOUD_VPC_ENDPOINT", "")][..], &[]] {
        let snapshot = parse(&[endpoint, &[("IBMCLOUD_API_KEY", "k")]].concat());
        let found = snapshot.endpoint().unwrap();
        assert_eq!((found.setting, &*found.address), ("IBMCLOUD_VPC_ENDPOINT", OF_THE_NODES));
    }
}

#[test]
fn settings_that_name_no_region_or_send_a_key_anywhere_are_refused() {
    let good = [("IBMCLOUD_VPC_ENDPOINT", "https://eu-de.iaas.cloud.ibm.com/v1"), ("IBMCLOUD_API_KEY", "k")];
    assert!(parse(&good).endpoint().is_ok());
    for (key, wrong, told) in [
        // It would be recorded as the region of the nodes.
        ("IBMCLOUD_VPC_ENDPOINT", OF_THE_NODES, "https"),
        ("IBMCLOUD_VPC_ENDPOINT", "https://eu-de.iaas.cloud.ibm.com", "end in /v1"),
        ("IBMCLOUD_VPC_ENDPOINT", "http://eu-de.iaas.cloud.ibm.com/v1", "https"),
        ("IBMCLOUD_VPC_ENDPOINT", "eu-de", "https"),
        ("IBMCLOUD_API_KEY", "", "IBMCLOUD_IAM_PROFILE_ID"),
        ("IBMCLOUD_IAM_ENDPOINT", "http://iam.example", "https"),
        ("IBMCLOUD_GLOBAL_SEARCH_ENDPOINT", "http://search.example", "https"),
    ] {
        let mut pairs = good.to_vec();
        pairs.retain(|(name, _)| *name != key);
        pairs.push((key, wrong));
        let obstacle = parse(&pairs).endpoint().unwrap_err();
        let obstacle = obstacle.for_log();
        assert!(obstacle.contains(key) && obstacle.contains(told), "{key}={wrong}: {obstacle}");
    }
}

#[test]
fn the_documented_actions_are_those_that_are_tested() {
    let page = include_str!("../../../docs/src/providers/ibmcloud.md");
    for action in ACTIONS {
        assert!(page.contains(&format!("| `{action}` |")), "docs/src/providers/ibmcloud.md lacks {action}");
    }
}
