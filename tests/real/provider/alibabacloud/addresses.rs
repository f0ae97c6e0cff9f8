//! Addresses that remain of a VM.

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::provider::{Bears, ErrorClass, Stage, alibabacloud::CLOUD};
use peers::alibaba::{Feature, Instance, Left};
use testbed::vm_name;

use super::Cloud;
use crate::{provider::own, support::run};

#[test]
fn an_address_is_deleted_with_its_vm_only_if_cloud_api_adaptor_made_it() -> Result<()> {
    const ADAPTORS: &str = "Peerpod External Network EIP";
    run(async {
        let cloud = Cloud::start().await?;
        let name = vm_name("web");
        let external =
            Instance { features: &[Feature::External, Feature::UserData], ..Instance::named(&name) };
        for (description, charge, left) in
            [(ADAPTORS, "PostPaid", 0), (ADAPTORS, "PrePaid", 1), ("mine", "PostPaid", 1)]
        {
            for keeps_interface in [false, true] {
                let id = cloud.peer.make(&external).await?;
                cloud.peer.address(&id, description, charge, "").await?;
                if keeps_interface {
                    cloud.peer.keep_interface(&id).await?;
                }
                let end = cloud.delete(&id).await?;
                let expected =
                    Left { vm: false, deleting: false, nics: 0, addresses: left, system: 0, data: 1 };
                assert_eq!(end, expected, "{description} {charge} {keeps_interface}");
            }
        }
        // A VM that ends without the operator leaves its interface, and an address that has no name.
        let id = cloud.peer.make(&external).await?;
        cloud.peer.keep_interface(&id).await?;
        cloud.peer.remove(&id, false).await?;
        assert_eq!(cloud.describe(&id).await?.map_err(|error| error.class), Ok(Stage::Remains(Bears::Id)));
        let provider = cloud.open()?;
        let own = own(&*provider, &CLOUD, &id, "web").await?;
        let busy = r#"{"Code":"InvalidStatus.EniStatusNotSupport"}"#;
        cloud.answer("&InstanceType=NetworkInterface", 400, busy);
        let error = provider.delete(&own).await.err().context("the address is free")?;
        assert_eq!(error.class, ErrorClass::Transient, "{error}");
        cloud.peer.relay().forget_rules();
        let end = cloud.delete(&id).await?;
        assert_eq!((end.nics, end.addresses), (0, 0), "{end:?}");
        Ok(())
    })
}

#[test]
fn an_address_that_something_else_uses_stays_and_the_peerpod_reports_it() -> Result<()> {
    run(async {
        let cloud = Cloud::start().await?;
        let name = vm_name("web");
        let id =
            cloud.peer.make(&Instance { features: &[Feature::External], ..Instance::named(&name) }).await?;
        cloud.peer.name_address(&id).await?;
        cloud.peer.remove(&id, false).await?;
        cloud.peer.address(&id, "Peerpod External Network EIP", "PostPaid", "eni-of-a-user").await?;
        let refused = cloud.delete(&id).await.err().context("it is deleted")?.to_string();
        ensure!(refused.contains("something else uses") && !refused.contains("eni-of-a-user"), "{refused}");
        ensure!(cloud.peer.left(&id).await?.addresses == 1, "the address is released");
        Ok(())
    })
}
