use secrecy::SecretString;

use super::{api::service, sign::request, *};
use crate::{
    provider::http::AccessKey,
    settings::{Raw, Snapshot},
};

#[test]
fn an_identifier_is_an_instances() {
    assert_eq!(instance("i-2zebgzk74po3gx1dwvuo"), Ok(ParsedId::unscoped("i-2zebgzk74po3gx1dwvuo")));
    for raw in [
        "",
        "i-",
        "i-1",
        "eip-2zebgzk74po3gx1dwvuo",
        "i-2zebgzk7\"]",
        "I-2zebgzk74po3gx1dwvuo",
        "i-2zebgzk7 a",
    ] {
        assert!(instance(raw).is_err(), "{raw}");
    }
}

#[test]
fn the_documented_policy_is_the_one_that_is_tested() {
    let page = include_str!("../../../docs/src/providers/alibabacloud.md");
    assert!(
        page.contains(POLICY),
        "docs/src/providers/alibabacloud.md has another policy than src/provider/alibabacloud/policy.json"
    );
}

#[test]
fn settings_say_where_vms_are_and_refuse_what_is_no_place() {
    const KEY: [(&str, &str); 2] =
        [("ALIBABACLOUD_ACCESS_KEY_ID", "a"), ("ALIBABACLOUD_ACCESS_KEY_SECRET", "b")];
    const ROLE: [(&str, &str); 3] = [
        ("ALIBABA_CLOUD_ROLE_ARN", "a"),
        ("ALIBABA_CLOUD_OIDC_PROVIDER_ARN", "b"),
        ("ALIBABA_CLOUD_OIDC_TOKEN_FILE", "c"),
    ];
    let endpoint = |given: &[&[(&str, &str)]]| {
        let given = given.concat();
        let given = given.iter().chain([&("CLOUD_PROVIDER", "alibabacloud")]);
        let settings = given.map(|(key, value)| ((*key).to_owned(), SecretString::from(*value))).collect();
        let raw = Raw { settings, ..Raw::default() };
        let endpoint = Snapshot::parse(&raw, crate::provider::CATALOGUE).unwrap().endpoint;
        endpoint.map(|it| it.address).map_err(|all| all.iter().map(|it| it.key).collect::<Vec<_>>())
    };
    assert_eq!(endpoint(&[&KEY]).as_deref(), Ok("cn-beijing"));
    assert_eq!(endpoint(&[&ROLE]).as_deref(), Ok("cn-beijing"));
    let private = [("REGION", "eu-central-1"), ("ALIBABA_CLOUD_ENDPOINT", "https://a:1")];
    let address = endpoint(&[&KEY, &private]).unwrap();
    // This spelling is recorded.
    assert_eq!(address, "eu-central-1 https://a:1");
    let place = RegionPlace::recorded(&address).unwrap();
    assert_eq!((&*place.region, place.endpoint.as_deref()), ("eu-central-1", Some("https://a:1")));
    let slash = [("ALIBABA_CLOUD_ENDPOINT", "https://a/b/")];
    assert_eq!(endpoint(&[&KEY, &slash]).as_deref(), Ok("cn-beijing https://a/b/"));
    assert_eq!(endpoint(&[]), Err(vec!["ALIBABACLOUD_ACCESS_KEY_ID"]));
    assert_eq!(endpoint(&[&KEY[..1], &ROLE]), Err(vec!["ALIBABACLOUD_ACCESS_KEY_ID"]));
    assert_eq!(endpoint(&[&ROLE[1..]]), Err(vec!["ALIBABACLOUD_ACCESS_KEY_ID"]));
    for wrong in [
        ("REGION", "cn-beijing.example.org/"),
        ("REGION", "a b"),
        ("REGION", "cn-Beijing"),
        ("ALIBABA_CLOUD_ENDPOINT", "http://a"),
    ] {
        assert_eq!(endpoint(&[&KEY, &[wrong]]), Err(vec![wrong.0]), "{wrong:?}");
    }
}

#[test]
fn every_region_has_its_own_address_but_some_of_the_oldest() {
    let urls = |address: &str| {
        let place = RegionPlace::recorded(address).unwrap();
        ["DeleteInstance", "ReleaseEipAddress", "GetCallerIdentity"].map(|action| service(&place, action).0)
    };
    let sts = "https://sts.aliyuncs.com";
    assert_eq!(
        urls("cn-beijing"),
        ["https://ecs.cn-beijing.aliyuncs.com", "https://vpc.cn-beijing.aliyuncs.com", sts]
    );
    assert_eq!(
        urls("cn-hangzhou"),
        ["https://ecs-cn-hangzhou.aliyuncs.com", "https://vpc.aliyuncs.com", sts]
    );
    assert_eq!(urls("cn-north-2-gov-1"), ["https://ecs.aliyuncs.com", "https://vpc.aliyuncs.com", sts]);
    assert_eq!(urls("cn-hangzhou https://a:1/"), ["https://a:1"; 3]);
}

/// What Alibaba Cloud's own library for Go sends for the same call at the same time with the same nonce. `go run . -record` in
/// `xtask/peers/alibaba` prints it.
#[test]
fn a_request_is_that_of_alibabas_library() {
    let headers = |token: Option<&str>| {
        let parameters = [
            ("RegionId", "cn-beijing"),
            ("InstanceName", "podvm-*"),
            ("InstanceIds", "[\"i-2zebgzk74po3gx1dwvuo\"]"),
        ];
        let what =
            ["DescribeInstances", "2014-05-26", "2026-11-23T06:00:00Z", "0123456789abcdef0123456789abcdef"];
        let credential =
            AccessKey { id: "id".into(), secret: "secret".into(), token: token.map(SecretString::from) };
        let url = "https://ecs.cn-beijing.aliyuncs.com";
        let request = request(url, what, &parameters, Some(&credential)).unwrap();
        assert_eq!(
            request.uri(),
            "https://ecs.cn-beijing.aliyuncs.com/?InstanceIds=%5B%22i-2zebgzk74po3gx1dwvuo%22%5D&\
             InstanceName=podvm-%2A&RegionId=cn-beijing"
        );
        let headers = request.into_parts().0.headers;
        assert_eq!(headers["content-length"], "0");
        let secrets = ["authorization", "x-acs-security-token", "x-acs-accesskey-id"];
        let shown = secrets.iter().filter_map(|name| headers.get(*name));
        assert!(shown.into_iter().all(hyper::header::HeaderValue::is_sensitive));
        headers["authorization"].to_str().unwrap().to_owned()
    };
    assert_eq!(
        headers(None),
        "ACS3-HMAC-SHA256 Credential=id,SignedHeaders=host;x-acs-action;x-acs-content-sha256;x-acs-date;\
         x-acs-signature-nonce;x-acs-version,\
         Signature=b9c5cef1923a173dab1087d4df5f5f57f8528de6e21903ed0ef1c8a7128f0c21"
    );
    assert_eq!(
        headers(Some("token")),
        "ACS3-HMAC-SHA256 Credential=id,SignedHeaders=host;x-acs-accesskey-id;x-acs-action;x-acs-content-sha256;\
         x-acs-date;x-acs-security-token;x-acs-signature-nonce;x-acs-version,\
         Signature=16ae197aeff784cc5ba2d5f2da04451414b43b8560a24ac972648b4b1e14adef"
    );
}

#[test]
fn the_path_of_an_endpoint_is_signed() {
    let what =
        ["DescribeInstances", "2014-05-26", "2026-11-23T06:00:00Z", "0123456789abcdef0123456789abcdef"];
    let key = AccessKey { id: "id".into(), secret: "secret".into(), token: None };
    for (url, sent, signature) in [
        (
            "https://ecs.example",
            "https://ecs.example/",
            "44b17ee2f3cb7c92f43c2b55e66ba267298bb5cd1daaf5a04615d5b70c26fc92",
        ),
        (
            "https://ecs.example/api",
            "https://ecs.example/api/",
            "daadc2f15951cef56fde624b4b25943b5ebc34a4c9af7618a4a19d939bc72ce0",
        ),
    ] {
        let request = request(url, what, &[], Some(&key)).unwrap();
        assert_eq!(request.uri(), sent);
        assert!(request.headers()["authorization"].to_str().unwrap().ends_with(signature), "{url}");
    }
}
