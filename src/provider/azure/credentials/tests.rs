use hyper::StatusCode;
use serde_json::json;

use super::*;

fn settings(secret: Option<&str>, client_id: Option<&str>, tenant: Option<&str>) -> Settings {
    let settings = Settings::read(&crate::settings::Values::default());
    let of = |text: Option<&str>| text.map(SecretString::from);
    Settings { client_secret: of(secret), client_id: of(client_id), tenant: of(tenant), ..settings }
}

fn found(settings: &Settings, variables: &[(&str, &str)]) -> Result<Source, &'static str> {
    let variable =
        |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    source(settings, &variable).map(|(source, _)| source).map_err(|malformed| malformed.key)
}

/// What the admission of workload identity sets.
const INJECTED: [(&str, &str); 4] = [
    (CLIENT_ID, "injected"),
    (TENANT, "their-tenant"),
    (TOKEN_FILE, "/token"),
    ("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.us/"),
];

#[test]
fn a_secret_precedes_workload_identity_which_precedes_managed_identity() {
    let secret = found(&settings(Some("s"), Some("app"), Some("t.example")), &INJECTED).unwrap();
    let Source::Application { url, client_id, proof: Proof::Secret(_) } = secret else {
        panic!("{secret:?}")
    };
    assert_eq!(url, "https://login.microsoftonline.us/t.example/oauth2/v2.0/token");
    assert_eq!(client_id.expose_secret(), "app");

    let federated = found(&settings(None, None, None), &INJECTED).unwrap();
    let Source::Application { url, client_id, proof: Proof::File(_, file) } = federated else {
        panic!("{federated:?}")
    };
    assert_eq!(url, "https://login.microsoftonline.us/their-tenant/oauth2/v2.0/token");
    assert_eq!((client_id.expose_secret(), &*file), ("injected", "/token"));

    for (variables, host) in [
        (vec![], "http://169.254.169.254"),
        (vec![(METADATA_HOST, "http://127.0.0.1:80/")], "http://127.0.0.1:80"),
    ] {
        let managed = found(&settings(None, Some("app"), None), &variables).unwrap();
        let Source::Metadata(server, client_id) = managed else { panic!("{managed:?}") };
        assert_eq!((&*server.url, client_id.unwrap().expose_secret()), (host, "app"));
    }
}

#[test]
fn a_metadata_service_that_is_being_updated_is_asked_again() {
    let managed = found(&settings(None, None, None), &[]).unwrap();
    let Source::Metadata(server, _) = managed else { panic!("{managed:?}") };
    for (status, code, expected) in [
        (404, "", Some(ErrorClass::Transient)),
        (404, "AuthorizationFailed", Some(ErrorClass::Transient)),
        (410, "", Some(ErrorClass::Transient)),
        (400, "invalid_request", Some(ErrorClass::Unauthorized)),
        (429, "", None),
        (500, "", None),
    ] {
        let body = json!({ "error": code }).to_string();
        let reply = Reply::of(StatusCode::from_u16(status).unwrap(), &body);
        let expected = expected.unwrap_or_else(|| reply.error("", "", None).class);
        assert_eq!(server.refusal(&reply).class, expected, "{status} {code}");
    }
}

#[test]
fn missing_credentials_and_an_invalid_tenant_are_named() {
    assert_eq!(found(&settings(Some("s"), None, Some("t")), &[]).unwrap_err(), CLIENT_ID);
    assert_eq!(found(&settings(Some("s"), Some("app"), None), &[]).unwrap_err(), TENANT);
    for tenant in ["a/b", "a?b", "a b", "ä"] {
        assert_eq!(
            found(&settings(Some("s"), Some("app"), Some(tenant)), &[]).unwrap_err(),
            TENANT,
            "{tenant}"
        );
    }
    let cloud = [("AZURE_AUTHORITY_HOST", "https://login.example")];
    assert_eq!(found(&settings(None, None, None), &cloud).unwrap_err(), "AZURE_AUTHORITY_HOST");
}

#[test]
fn without_a_client_id_the_problem_says_where_to_set_it() {
    let problem = |secret: Option<&str>| {
        let variable = |name: &str| (name == TOKEN_FILE).then(|| "/token".to_owned());
        source(&settings(secret, None, Some("t")), &variable).unwrap_err().problem
    };
    let (of_secret, of_identity) = (problem(Some("s")), problem(None));
    assert!(of_secret.contains("AZURE_CLIENT_SECRET"), "{of_secret}");
    assert!(of_identity.contains("azure.workload.identity/client-id"), "{of_identity}");
}
