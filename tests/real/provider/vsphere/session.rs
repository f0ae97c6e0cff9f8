//! Sessions, and the vCenter that gets the password.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use jiff::Timestamp;
use peerpod_operator::provider::{ErrorClass, Openers, Stage, cloud::RecordedPlace};
use peers::{
    Does,
    vsphere::{Machine, OTHER_PATH, PATH},
};
use testbed::{
    Settings, vm_name,
    wait::{self, DEADLINE},
};

use super::{Stand, describe};
use crate::support::run;

#[test]
fn a_session_that_ended_is_replaced_once_and_a_refused_user_is_not_tried_again_soon() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let id = cloud.peer.make(&Machine::named(&vm_name("web"))).await?;
        let provider = cloud.settings().open()?;
        for logins in [1, 2, 3] {
            assert_eq!(describe(&*provider, &id).await?, Ok(Stage::Present));
            assert_eq!(describe(&*provider, &id).await?, Ok(Stage::Present));
            assert_eq!(cloud.peer.about().await?.logins, logins);
            cloud.peer.expire().await?;
        }
        let all = try_join_all((0..20).map(|_| describe(&*provider, &id))).await?;
        ensure!(all.iter().all(|stage| *stage == Ok(Stage::Present)), "{all:?}");
        assert_eq!(cloud.peer.about().await?.logins, 4, "all share one session");

        // vCenter locks out a user after a few wrong passwords.
        let provider = cloud.with("GOVC_PASSWORD", "wrong+password").open()?;
        // A failed login counts for all callers for 2 s anyway.
        for _ in 0..5 {
            let error = describe(&*provider, &id).await?.err().context("it is described")?;
            assert_eq!(error.class, ErrorClass::Unauthorized);
            let told = error.message.for_log();
            ensure!(!told.contains("wrong+password") && told.contains("InvalidLogin"), "{told}");
            wait::second_after(Timestamp::now()).await?;
        }
        assert_eq!(cloud.peer.about().await?.logins, 5);
        Ok(())
    })
}

#[test]
fn all_folders_of_a_vcenter_share_the_session_of_a_user() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let id = cloud.peer.make(&Machine::named(&vm_name("web"))).await?;
        let vcenter = cloud.peer.about().await?.id;
        let url = format!("http://{}/sdk", cloud.peer.relay().address());
        let openers = Openers::default();
        let open = |settings: &Settings, folder: &str| {
            let address = format!("{url} {folder}");
            let recorded = RecordedPlace::former(&address, Some(&vcenter));
            settings.open_by(&openers, Some(recorded))
        };
        let folders = [PATH, OTHER_PATH, "/DC0/vm/a", "/DC0/vm/b", "/DC0/vm/c"];
        let wrong = cloud.with("GOVC_PASSWORD", "wrong+password");
        // A provider is opened with new settings while that of the old ones is still used.
        let mut kept = Vec::new();
        for (settings, works, logins) in [(cloud.settings(), true, 1), (wrong, false, 2)] {
            let providers: Vec<_> = folders.iter().map(|it| open(&settings, it)).collect::<Result<_, _>>()?;
            let all = try_join_all(providers.iter().map(|it| describe(&**it, &id))).await?;
            ensure!(all.iter().all(|stage| stage.is_ok() == works), "{all:?}");
            assert_eq!(cloud.peer.about().await?.logins, logins);
            kept.push(providers);
        }
        Ok(())
    })
}

#[test]
fn a_list_whose_session_ends_in_the_middle_may_work_later() -> Result<()> {
    const NEXT: &str = "<Body><ContinueRetrievePropertiesEx ";
    run(async {
        let cloud = Stand::start().await?;
        for pod in ["web", "db"] {
            cloud.peer.make(&Machine::named(&vm_name(pod))).await?;
        }
        cloud.peer.page_size(1).await?;
        let provider = cloud.settings().open()?;
        let list = async || {
            let mut count = 0;
            provider.list(&mut |page| count += page.len()).await.map(|()| count)
        };
        assert_eq!(list().await, Ok(2));
        let asked = || cloud.methods().iter().filter(|it| *it == "ContinueRetrievePropertiesEx").count();
        let before = asked();
        cloud.peer.relay().rule(|seen| seen.body.contains(NEXT), Does::Delay(Duration::from_secs(8)));
        let ends = async {
            let what = "the second page is asked for";
            let is_asked = async || {
                ensure!(asked() > before);
                Ok(())
            };
            wait::eventually(what, DEADLINE, is_asked).await?;
            cloud.peer.expire().await
        };
        let (listed, ended) = tokio::join!(list(), ends);
        ended?;
        ensure!(listed.as_ref().is_err_and(|error| error.class == ErrorClass::Transient), "{listed:?}");
        cloud.peer.relay().forget_rules();
        assert_eq!(list().await, Ok(2));
        Ok(())
    })
}

#[test]
fn the_certificate_is_the_one_with_the_thumbprint() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let id = cloud.peer.make(&Machine::named(&vm_name("web"))).await?;
        let about = cloud.peer.about().await?;
        let at = async |thumbprint: Option<&str>| {
            let mut settings = cloud.with("GOVC_URL", &format!("user:pass@{}", about.address));
            if let Some(thumbprint) = thumbprint {
                settings.secret.insert("GOVC_THUMBPRINT".to_owned(), thumbprint.to_owned());
            }
            describe(&*settings.open()?, &id).await
        };
        for thumbprint in [&about.sha1, &about.sha256, &about.sha256.to_lowercase().replace(':', "")] {
            assert_eq!(at(Some(thumbprint)).await?, Ok(Stage::Present));
        }
        let logins = cloud.peer.about().await?.logins;
        let wrong = format!("00{}", &about.sha1[2..]);
        for (thumbprint, says) in [(None, "GOVC_THUMBPRINT"), (Some(&*wrong), "fingerprint")] {
            let error = at(thumbprint).await?.err().context("it is trusted")?;
            ensure!(error.class == ErrorClass::Invalid && error.to_string().contains(says), "{error}");
            ensure!(!error.message.for_log().contains("pass"), "{}", error.message.for_log());
        }
        assert_eq!(cloud.peer.about().await?.logins, logins, "nobody else gets the password");
        Ok(())
    })
}
