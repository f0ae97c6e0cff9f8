"""Runs moto's EC2, and beside it a server for tests that look at it by Amazon's own SDK.

    main.py FOLDER

Writes the ports of both into FOLDER/ports once they listen.
"""

import gc
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# It ends with its test, before garbage matters. To look for garbage took a third of the processor time until the first instances.
gc.disable()

import boto3
from moto import settings
from moto.server import ThreadedMotoServer

REGION = "eu-west-1"

# What cloud-api-adaptor tags every instance with.
TAG = {"Key": "cluster", "Value": "test"}

# moto takes any image.
IMAGE = "ami-12345678"


class Cloud:
    """EC2 as its owner sees it."""

    def __init__(self, endpoint):
        def client(service, key, secret):
            return boto3.client(
                service,
                region_name=REGION,
                endpoint_url=endpoint,
                aws_access_key_id=key,
                aws_secret_access_key=secret,
            )

        self.users = 0
        self.iam = client("iam", "anybody", "anything")
        everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        owner = self.user(json.dumps({"Version": "2012-10-17", "Statement": [everything]}))
        # From now on signatures and rights count.
        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0.0
        self.iam, self.ec2 = client("iam", *owner), client("ec2", *owner)

    def make(self, name, kind):
        made = self.ec2.run_instances(
            ImageId=IMAGE,
            MinCount=1,
            MaxCount=1,
            InstanceType="t3.micro",
            TagSpecifications=[{"ResourceType": "instance", "Tags": named(name) + [TAG]}],
        )["Instances"][0]
        instance = made["InstanceId"]
        if kind in ("running", "stopped", "remains"):
            address = self.ec2.allocate_address(
                Domain="vpc",
                TagSpecifications=[{"ResourceType": "elastic-ip", "Tags": named(f"eip-{instance}")}],
            )["AllocationId"]
            self.ec2.associate_address(AllocationId=address, InstanceId=instance)
            self.ec2.create_network_interface(
                SubnetId=made["SubnetId"],
                TagSpecifications=[{"ResourceType": "network-interface", "Tags": named(f"nic-{instance}")}],
            )
        if kind == "data":
            volume = self.ec2.create_volume(
                AvailabilityZone=made["Placement"]["AvailabilityZone"],
                Size=1,
                TagSpecifications=[{"ResourceType": "volume", "Tags": named(f"data-{instance}")}],
            )["VolumeId"]
            self.ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device="/dev/sdf")
        if kind == "stopped":
            self.ec2.stop_instances(InstanceIds=[instance])
        if kind == "remains":
            self.ec2.terminate_instances(InstanceIds=[instance])
        return instance

    def belongings(self, instance):
        addresses = self.ec2.describe_addresses(Filters=tagged(f"eip-{instance}"))["Addresses"]
        interfaces = self.ec2.describe_network_interfaces(Filters=tagged(f"nic-{instance}"))["NetworkInterfaces"]
        return addresses, interfaces

    def left(self, instance):
        instances = self.ec2.describe_instances(InstanceIds=[instance])["Reservations"]
        states = [found["State"]["Name"] for held in instances for found in held["Instances"]]
        addresses, interfaces = self.belongings(instance)
        data = self.ec2.describe_volumes(Filters=tagged(f"data-{instance}"))["Volumes"]
        return {
            "vm": any(state not in ("terminated", "shutting-down") for state in states),
            "belongings": len(addresses) + len(interfaces),
            "user_data": bool(data),
        }

    def user(self, policy):
        made = f"user-{self.users}"
        self.users += 1
        self.iam.create_user(UserName=made)
        self.iam.put_user_policy(UserName=made, PolicyName="policy", PolicyDocument=policy)
        key = self.iam.create_access_key(UserName=made)["AccessKey"]
        return key["AccessKeyId"], key["SecretAccessKey"]

    def rights(self, count):
        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0.0 if count else float("inf")

    def role(self, policy):
        trust = {"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRoleWithWebIdentity"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        made = self.iam.create_role(RoleName="operator", AssumeRolePolicyDocument=document)["Role"]
        self.iam.put_role_policy(RoleName="operator", PolicyName="policy", PolicyDocument=policy)
        return made["Arn"]

    def lend(self, instance, to):
        addresses, _ = self.belongings(instance)
        for address in addresses:
            if to:
                self.ec2.associate_address(
                    AllocationId=address["AllocationId"], InstanceId=to, AllowReassociation=True
                )
            else:
                self.ec2.disassociate_address(AssociationId=address["AssociationId"])

    def tag(self, instance, key, value):
        self.ec2.create_tags(Resources=[instance], Tags=[{"Key": key, "Value": value}])

    def remove(self, instance):
        self.ec2.terminate_instances(InstanceIds=[instance])
        addresses, interfaces = self.belongings(instance)
        for address in addresses:
            if "AssociationId" in address:
                self.ec2.disassociate_address(AssociationId=address["AssociationId"])
            self.ec2.release_address(AllocationId=address["AllocationId"])
        for interface in interfaces:
            self.ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])


def named(name):
    return [{"Key": "Name", "Value": name}]


def tagged(name):
    return [{"Name": "tag:Name", "Values": [name]}]


def handler(cloud):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            try:
                status, answer = 200, getattr(cloud, self.path.strip("/"))(**asked)
            except Exception as problem:  # The test shows it.
                status, answer = 500, {"problem": repr(problem)}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler


def main():
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    port = moto.get_host_and_port()[1]
    cloud = Cloud(f"http://127.0.0.1:{port}")
    control = ThreadingHTTPServer(("127.0.0.1", 0), handler(cloud))
    path = os.path.join(sys.argv[1], "ports")
    with open(path + ".new", "w") as file:
        file.write(f"{port} {control.server_port}\n")
    os.rename(path + ".new", path)
    control.serve_forever()


main()
