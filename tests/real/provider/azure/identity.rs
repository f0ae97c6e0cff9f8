//! The operator's credentials and its tokens.

use std::fs;

use anyhow::{Result, ensure};
use peerpod_operator::provider::{Claim, ErrorClass, InstanceId, azure::CLOUD};
use peers::azure::{ACTIONS, ASK_FOR_RIGHTS, CLIENT, Principal, TENANT, Vm};
use testbed::vm_name;

use super::{Stand, answer, check::works};
use crate::{
    provider::check::{check, findings},
    support::run,
};

#[test]
fn a_token_that_is_refused_is_replaced() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let id = azure.peer.make(&Vm::named(&vm_name("web"))).await?;
        let (provider, parsed) = (azure.open()?, InstanceId::of(&CLOUD, &id)?);
        let describe =
            async || provider.describe(&parsed, &Claim::default()).await.map_err(|error| error.class);
        ensure!(describe().await.is_ok());
        azure.peer.expire().await?;
        assert_eq!(describe().await.err(), Some(ErrorClass::Unauthorized));
        ensure!(describe().await.is_ok());
        Ok(())
    })
}

#[test]
fn the_operator_is_an_application_or_the_machines_identity() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let (url, all) = (azure.peer.url(), ACTIONS.into_iter().chain([ASK_FOR_RIGHTS]).collect::<Vec<_>>());
        works(&azure, "a secret", &azure.settings(), &[]).await?;

        // The variables that the admission of workload identity sets. The Secret has nothing.
        let file = azure.dir.path().join("token");
        let path = file.display().to_string();
        let injected = [
            ("AZURE_CLIENT_ID", CLIENT),
            ("AZURE_TENANT_ID", TENANT),
            ("AZURE_FEDERATED_TOKEN_FILE", &path),
            ("AZURE_AUTHORITY_HOST", &url),
        ];
        let mut none = azure.settings();
        none.secret.clear();
        fs::write(&file, azure.peer.assertion(CLIENT, 60).await? + "\n")?;
        works(&azure, "workload identity", &none, &injected).await?;
        for (what, token, code) in [
            ("a token that ended", azure.peer.assertion(CLIENT, -1).await?, "AADSTS700024"),
            ("a token for another application", azure.peer.assertion("other", 60).await?, "AADSTS70021"),
        ] {
            fs::write(&file, token)?;
            let (output, cloud) = check(azure.dir.path(), &none, &injected).await?;
            assert_eq!(output.status.code(), Some(3), "{what}: {cloud}");
            ensure!(findings(&cloud)[0].1.contains(code), "{what}: {cloud}");
        }

        let metadata = [("AZURE_POD_IDENTITY_AUTHORITY_HOST", &*url)];
        for status in [404, 410] {
            azure.rule("/metadata/", answer(status, ""));
            let (_, cloud) = check(azure.dir.path(), &none, &metadata).await?;
            assert_eq!(cloud["class"], "transient", "the metadata service is being updated: {cloud}");
            azure.peer.relay().forget_rules();
        }
        let (_, cloud) = check(azure.dir.path(), &none, &metadata).await?;
        ensure!(findings(&cloud)[0].1.contains("managed identity"), "no machine has one yet: {cloud}");
        azure.peer.principal(&Principal { managed: true, secret: "", ..Principal::operator(&all) }).await?;
        works(&azure, "the only managed identity", &none, &metadata).await?;
        none.secret.insert("AZURE_CLIENT_ID".to_owned(), CLIENT.to_owned());
        works(&azure, "a managed identity of several", &none, &metadata).await
    })
}
