//! The operator's credentials and its tokens.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::provider::{
    Claim, ErrorClass, InstanceId,
    ibmcloud::{ACTIONS, CLOUD},
};
use peers::{
    Does,
    ibm::{ACCOUNT, Instance, KEY, Principal},
};
use testbed::{Settings, vm_name};

use super::{OTHER_VM, start};
use crate::{
    provider::check::{check, findings},
    support::run,
};

#[test]
fn the_operator_is_an_api_key_or_a_trusted_profile() -> Result<()> {
    run(async {
        let cloud = start().await?;
        cloud.peer.make(&Instance::named(OTHER_VM)).await?;
        let works = async |by: &str, settings: &Settings, environment: &[(&str, &str)]| -> Result<()> {
            let (_, report) = check(cloud.dir(), settings, environment).await?;
            let account = format!("account {ACCOUNT}, by {by}");
            ensure!(
                findings(&report).iter().any(|(outcome, text)| outcome == "works" && *text == account),
                "{by}: {report}"
            );
            Ok(())
        };
        works("the API key", &cloud.settings(), &[]).await?;

        let (profile, subject) = ("Profile-8dd84246-7df4-4667-94e4-8cede51d5ac5", "a.projected+token/=");
        let principal = Principal { profile, subject, account: ACCOUNT, actions: &ACTIONS, key: "" };
        cloud.peer.principal(&principal).await?;
        let file = cloud.dir().join("vault-token");
        fs::write(&file, format!("{subject}\n"))?;
        let file = file.display().to_string();
        let mut settings = cloud.settings();
        settings.secret = [("IBMCLOUD_IAM_PROFILE_ID".to_owned(), profile.to_owned())].into();
        works("the trusted profile", &settings, &[("IBMCLOUD_CR_TOKEN_FILENAME", &file)]).await?;
        // Outside of a Pod there is no such volume.
        let (output, report) = check(cloud.dir(), &settings, &[]).await?;
        ensure!(
            !output.status.success() && findings(&report)[0].1.contains("volume vault-token"),
            "{report}"
        );
        Ok(())
    })
}

#[test]
fn an_access_token_that_ended_is_replaced_and_none_is_quoted() -> Result<()> {
    run(async {
        let cloud = start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let provider = cloud.open()?;
        let describe =
            async || provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await.context("");
        describe().await?;
        cloud.peer.expire().await?;
        ensure!(describe().await.is_err(), "a token that ended is good");
        describe().await?;
        for body in [
            r#"{"access_token":"a-secret","expires_in":3600}"#,
            r#"{"access_token":"a-secret"}"#,
            r#"["a-secret"]"#,
        ] {
            cloud.peer.relay().forget_rules();
            let answer = Does::Answer { status: 200, headers: Vec::new(), body: body.to_owned() };
            cloud.peer.relay().rule(|seen| seen.path == "/identity/token", answer);
            let error = cloud.describe(&id).await?.err().context("it is described")?;
            ensure!(error.class == ErrorClass::Transient, "{error:?}");
            ensure!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
        // The endpoint repeats the API key.
        cloud.peer.relay().forget_rules();
        let body = format!(r#"{{"errorCode":"BXNIM0415E","errorMessage":"no key {KEY}"}}"#);
        let answer = Does::Answer { status: 400, headers: Vec::new(), body };
        cloud.peer.relay().rule(|seen| seen.path == "/identity/token", answer);
        let error = cloud.describe(&id).await?.err().context("it is described")?;
        ensure!(error.class == ErrorClass::Unauthorized && !format!("{error:?}").contains(KEY), "{error:?}");
        Ok(())
    })
}
