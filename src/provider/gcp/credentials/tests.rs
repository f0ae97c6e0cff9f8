use super::*;
use crate::provider::http::Options;

fn federation() -> Value {
    json!({
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": { "file": "/var/run/secrets/tokens/gcp" },
        "universe_domain": "googleapis.com",
    })
}

fn problem(document: &Value) -> &'static str {
    parse(&document.to_string()).map(drop).unwrap_err()
}

#[test]
fn a_document_of_federation_is_read() {
    assert_eq!(parse(&federation().to_string()).map(drop), Ok(()));
}

#[test]
fn an_error_about_a_document_shows_none_of_its_values() {
    let key = json!({
        "type": "service_account",
        "client_email": "operator@peer-pods",
        "private_key": "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n",
        "token_uri": "https://oauth2.googleapis.com/token",
    });
    let mut by_program = federation();
    by_program["credential_source"] = json!({ "executable": { "command": "/bin/secret" } });
    let user = json!({ "type": "authorized_user", "refresh_token": "secret" });
    for (document, word) in [
        (key, "private_key"),
        (by_program, "external_account"),
        (user, "service_account"),
        (json!("c2VjcmV0"), "JSON"),
        (json!({}), "JSON"),
    ] {
        let problem = problem(&document);
        assert!(
            problem.contains(word) && !problem.contains("secret") && !problem.contains("c2Vj"),
            "{problem}"
        );
    }
}

#[test]
fn a_key_of_another_universe_is_refused_for_that_reason() {
    let of = |universe: Value| {
        problem(&json!({
            "type": "service_account",
            "client_email": "operator@peer-pods",
            "private_key": "none",
            "token_uri": "https://oauth2.googleapis.com/token",
            "universe_domain": universe,
        }))
    };
    assert!(of("example.org".into()).contains("universe_domain"));
    for own in [Value::Null, "googleapis.com".into()] {
        assert!(of(own.clone()).contains("private_key"), "{own}");
    }
}

#[test]
fn a_credential_is_sent_to_https_alone() {
    for (name, url) in [
        ("token_url", "http://sts.googleapis.com/v1/token"),
        ("token_url", "ftp://sts.googleapis.com"),
        ("service_account_impersonation_url", "http://iamcredentials.googleapis.com/x"),
    ] {
        let mut document = federation();
        document[name] = url.into();
        assert!(problem(&document).contains("https"), "{url}");
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_read_again_soon_and_a_setting_is_corrected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("credentials.json");
    std::fs::write(&path, "{}").unwrap();
    let file = |path: String| Proof::File(FILE, path);
    let path = path.display().to_string();
    let client = Client::new(Options::default()).unwrap();
    for (proof, class) in [
        (file(format!("{path}-2")), ErrorClass::Unauthorized),
        (file(path), ErrorClass::Unauthorized),
        (Proof::Secret("{}".into()), ErrorClass::Invalid),
    ] {
        let error = Source::Document(proof).fetch(&client).await.err().unwrap();
        assert_eq!(error.class, class, "{error}");
    }
}
