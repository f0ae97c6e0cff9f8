//! The operator's credentials.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::provider::{
    Claim, ErrorClass, InstanceId,
    alibabacloud::{CLOUD, POLICY},
};
use peers::alibaba::{ACCOUNT, Instance, REGION, actions};
use testbed::{Settings, vm_name};

use super::Cloud;
use crate::{
    provider::check::{check, findings},
    support::run,
};

#[test]
fn the_operator_is_an_access_key_or_a_role() -> Result<()> {
    const ROLE: &str = "acs:ram::1234567890123456:role/peerpod-operator";
    const PROVIDER: &str = "acs:ram::1234567890123456:oidc-provider/ack-rrsa-c1";
    const TOKEN: &str = "a.projected-token.x_y";
    run(async {
        let cloud = Cloud::start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let works = async |by: &str, settings: &Settings, environment: &[(&str, &str)]| -> Result<()> {
            let (_, report) = check(cloud.dir.path(), settings, environment).await?;
            let account = format!("account {ACCOUNT}, region {REGION}, by {by}");
            let found =
                findings(&report).iter().any(|(outcome, text)| outcome == "works" && *text == account);
            ensure!(found && !report.to_string().contains(TOKEN), "{by}: {report}");
            Ok(())
        };
        works("an access key", &cloud.settings(), &[]).await?;

        cloud.peer.role(ROLE, PROVIDER, TOKEN, &actions(POLICY)?).await?;
        let file = cloud.dir.path().join("token");
        fs::write(&file, format!("{TOKEN}\n"))?;
        let file = file.display().to_string();
        let role = [
            ("ALIBABA_CLOUD_ROLE_ARN", ROLE),
            ("ALIBABA_CLOUD_OIDC_PROVIDER_ARN", PROVIDER),
            ("ALIBABA_CLOUD_OIDC_TOKEN_FILE", &*file),
        ];
        let mut none = cloud.settings();
        none.secret.clear();
        works("a role by a token of the ServiceAccount", &none, &role).await?;
        let mut set = none.clone();
        set.config_map.extend(role.map(|(key, value)| (key.to_owned(), value.to_owned())));
        works("a role by a token of the ServiceAccount", &set, &[]).await?;
        // A role that ACK sets overrules that of the settings, and may be of another account.
        let overruled = [("ALIBABA_CLOUD_ROLE_ARN", "acs:ram::6543210987654321:role/other")];
        let (output, report) = check(cloud.dir.path(), &set, &overruled).await?;
        ensure!(output.status.code() == Some(1) && report["state"] == "not_tried", "{report}");

        // The provider does not use expired credentials again.
        let provider = set.open()?;
        let instance = InstanceId::of(&CLOUD, &id)?;
        provider.describe(&instance, &Claim::default()).await?;
        cloud.peer.expire().await?;
        let expired = provider.describe(&instance, &Claim::default()).await.err().context("they are good")?;
        assert_eq!(expired.class, ErrorClass::Unauthorized);
        provider.describe(&instance, &Claim::default()).await?;

        fs::write(&file, "another-token")?;
        let refused =
            set.open()?.describe(&instance, &Claim::default()).await.err().context("it is let in")?;
        ensure!(refused.class == ErrorClass::Unauthorized, "{refused:?}");
        // The service repeats the token, or sends an unexpected answer.
        for (status, body) in
            [(400, r#"{"Code":"AuthenticationFail","Message":"another-token"}"#), (200, r#"["a-secret"]"#)]
        {
            cloud.answer("OIDCToken=", status, body);
            let refused =
                set.open()?.describe(&instance, &Claim::default()).await.err().context("it is let in")?;
            let shown = format!("{refused:?}");
            ensure!(!shown.contains("another-token") && !shown.contains("a-secret"), "{shown}");
            cloud.peer.relay().forget_rules();
        }
        Ok(())
    })
}
