//! The calls: their numbers, arguments and results.

use uuid::Uuid;

use crate::objects::{Domain, Pool, Volume};
use crate::xdr::{Decode, Encode};

/// A call of libvirt's remote program.
pub(crate) trait Procedure {
    /// Its number in the program.
    const NUMBER: i32;
    /// Its name in the program, for messages.
    const NAME: &'static str;
    /// The arguments, field by field.
    type Arguments<'a>: Encode;
    /// What comes out, field by field.
    type Result: Decode;
}

macro_rules! procedures {
    ($($number:literal $name:literal $procedure:ident ($($argument:ty),*) -> $result:ty;)*) => {$(
        #[doc = concat!("`", $name, "`")]
        pub(crate) enum $procedure {}

        impl Procedure for $procedure {
            const NUMBER: i32 = $number;
            const NAME: &'static str = $name;
            type Arguments<'a> = procedures!(@arguments $($argument),*);
            type Result = $result;
        }
    )*};
    (@arguments) => { () };
    (@arguments $($argument:ty),+) => { ($($argument,)+) };
}

/// Bits that a call takes; zero unless said otherwise.
pub(crate) type Flags = u32;
/// Whether a list is wanted (1) or merely its length (0).
pub(crate) type NeedResults = i32;
/// The length of a list, which libvirt sends once more after the list.
pub(crate) type Count = u32;

procedures! {
    66 "AUTH_LIST" AuthList() -> Vec<i32>;
    70 "AUTH_POLKIT" AuthPolkit() -> i32;
    1 "CONNECT_OPEN" ConnectOpen(Option<&'a str>, Flags) -> ();
    3 "CONNECT_GET_TYPE" ConnectGetType() -> String;
    4 "CONNECT_GET_VERSION" ConnectGetVersion() -> u64;
    7 "CONNECT_GET_CAPABILITIES" ConnectGetCapabilities() -> String;
    157 "CONNECT_GET_LIB_VERSION" ConnectGetLibVersion() -> u64;
    273 "CONNECT_LIST_ALL_DOMAINS" ConnectListAllDomains(NeedResults, Flags) -> (Vec<Domain>, Count);

    24 "DOMAIN_LOOKUP_BY_UUID" DomainLookupByUuid(Uuid) -> Domain;
    212 "DOMAIN_GET_STATE" DomainGetState(&'a Domain, Flags) -> (i32, i32);
    151 "DOMAIN_IS_PERSISTENT" DomainIsPersistent(&'a Domain) -> i32;
    14 "DOMAIN_GET_XML_DESC" DomainGetXmlDesc(&'a Domain, Flags) -> String;
    11 "DOMAIN_DEFINE_XML" DomainDefineXml(&'a str) -> Domain;
    9 "DOMAIN_CREATE" DomainCreate(&'a Domain) -> ();
    12 "DOMAIN_DESTROY" DomainDestroy(&'a Domain) -> ();
    231 "DOMAIN_UNDEFINE_FLAGS" DomainUndefineFlags(&'a Domain, Flags) -> ();
    35 "DOMAIN_UNDEFINE" DomainUndefine(&'a Domain) -> ();

    76 "STORAGE_POOL_CREATE_XML" StoragePoolCreateXml(&'a str, Flags) -> Pool;
    84 "STORAGE_POOL_LOOKUP_BY_NAME" StoragePoolLookupByName(&'a str) -> Pool;
    88 "STORAGE_POOL_GET_XML_DESC" StoragePoolGetXmlDesc(&'a Pool, Flags) -> String;
    91 "STORAGE_POOL_NUM_OF_VOLUMES" StoragePoolNumOfVolumes(&'a Pool) -> i32;
    282 "STORAGE_POOL_LIST_ALL_VOLUMES" StoragePoolListAllVolumes(&'a Pool, NeedResults, Flags) -> (Vec<Volume>, Count);
    95 "STORAGE_VOL_LOOKUP_BY_NAME" StorageVolLookupByName(&'a Pool, &'a str) -> Volume;
    97 "STORAGE_VOL_LOOKUP_BY_PATH" StorageVolLookupByPath(&'a str) -> Volume;
    93 "STORAGE_VOL_CREATE_XML" StorageVolCreateXml(&'a Pool, &'a str, Flags) -> Volume;
    94 "STORAGE_VOL_DELETE" StorageVolDelete(&'a Volume, Flags) -> ();
}
