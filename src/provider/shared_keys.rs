//! Settings that mean the same on several clouds.

use crate::settings::Key;

pub(super) const DISABLE_CVM: Key =
    Key::switch("DISABLECVM", "Whether pod VMs are ordinary ones, without confidential computing.")
        .default("false");

pub(super) const USE_PUBLIC_IP: Key =
    Key::switch("USE_PUBLIC_IP", "Whether pod VMs get a public address, which cloud-api-adaptor uses.")
        .default("false");

pub(super) const TAGS: Key = Key::text("TAGS", "Tags of pod VMs, as in a=b,c=d.");
