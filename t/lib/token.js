// Creates keys and tokens for t/lib/Token.pm: each input line is a request in JSON, each output line its result.
'use strict';
const crypto = require('crypto');
const readline = require('readline');

const bytes = text => Buffer.from(text, 'latin1');

function key({ kind, options }) {
    const pair = crypto.generateKeyPairSync(kind, options);
    const answer = {
        public: pair.publicKey.export({ type: 'spki', format: 'pem' }),
        private: pair.privateKey.export({ type: 'pkcs8', format: 'pem' }),
        der: pair.publicKey.export({ type: 'spki', format: 'der' }).toString('latin1'),
    };
    if (kind === 'rsa') answer.pkcs1 = pair.publicKey.export({ type: 'pkcs1', format: 'pem' });
    if (kind !== 'dsa' && kind !== 'rsa-pss') {
        answer.jwk = pair.publicKey.export({ format: 'jwk' });
        answer.private_jwk = pair.privateKey.export({ format: 'jwk' });
    }
    return answer;
}

function signature({ alg, secret, private: pem, text }) {
    const hash = 'sha' + alg.slice(2);
    switch (alg.slice(0, 2)) {
    case 'HS':
        return crypto.createHmac(hash, bytes(secret)).update(bytes(text)).digest();
    case 'PS':
        return crypto.sign(hash, bytes(text), {
            key: pem,
            padding: crypto.constants.RSA_PKCS1_PSS_PADDING,
            saltLength: crypto.constants.RSA_PSS_SALTLEN_DIGEST,
        });
    case 'ES':
        return crypto.sign(hash, bytes(text), { key: pem, dsaEncoding: 'ieee-p1363' });
    case 'DE': // DER256: what ES256 would be if it were written as X.509 writes it
        return crypto.sign('sha' + alg.slice(3), bytes(text), pem);
    case 'Ed':
        return crypto.sign(null, bytes(text), pem);
    default: // RS
        return crypto.sign(hash, bytes(text), pem);
    }
}

async function jose({ alg, secret, private: pem, header, claims }) {
    const { SignJWT } = require('jose');
    const signer = secret === undefined ? crypto.createPrivateKey(pem) : bytes(secret);
    return await new SignJWT(claims).setProtectedHeader({ ...header, alg }).sign(signer);
}

const operations = {
    key,
    jose,
    signature: request => signature(request).toString('base64url'),
};

(async () => {
    for await (const line of readline.createInterface({ input: process.stdin })) {
        const request = JSON.parse(line);
        let answer;
        try {
            answer = { result: await operations[request.operation](request) };
        } catch (error) {
            answer = { error: String(error) };
        }
        process.stdout.write(JSON.stringify(answer) + '\n');
    }
})();
